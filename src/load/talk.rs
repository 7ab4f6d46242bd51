//! A conversation: each turn is sent with all that was said before it.

use serde_json::Value;

use super::body::{assistant, user};
use crate::profile::Prompt;

/// A conversation under way.
#[derive(Debug)]
pub(super) struct Talk {
    /// Which one: what is said in it follows from that.
    pub(super) number: u64,
    /// Turns that were begun.
    turn: u64,
    messages: Vec<Value>,
}

impl Talk {
    pub(super) fn new(number: u64) -> Self {
        Talk { number, turn: 0, messages: Vec::new() }
    }

    /// What was said so far.
    pub(super) fn messages(&self) -> &[Value] {
        &self.messages
    }

    /// Says the next thing: of a recorded conversation its next turn, else a prompt after the other. `None` when it is
    /// over.
    pub(super) fn say(&mut self, prompts: &[Prompt], turns: u64, place: impl Fn(u64) -> usize) -> Option<()> {
        if self.turn >= turns {
            return None;
        }
        let recorded = prompts.iter().any(|prompt| !prompt.then.is_empty());
        let text = if recorded {
            let prompt = prompts.get(place(self.number))?;
            match self.turn.checked_sub(1) {
                None => &prompt.text,
                Some(later) => prompt.then.get(usize::try_from(later).ok()?)?,
            }
        } else {
            &prompts.get(place(self.number.wrapping_mul(turns) + self.turn))?.text
        };
        self.messages.push(user(text));
        self.turn += 1;
        Some(())
    }

    /// Takes the answer in.
    pub(super) fn hear(&mut self, answer: &str) {
        self.messages.push(assistant(answer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(text: &str, then: &[&str]) -> Prompt {
        Prompt { id: text.into(), text: text.into(), then: then.iter().map(|text| (*text).into()).collect() }
    }

    #[test]
    fn a_turn_is_sent_with_what_was_said_before() {
        let prompts = [prompt("a", &[]), prompt("b", &[]), prompt("c", &[])];
        let mut talk = Talk::new(1);
        let place = |n: u64| (n % 3) as usize;
        talk.say(&prompts, 2, place).unwrap();
        talk.hear("yes");
        talk.say(&prompts, 2, place).unwrap();
        assert_eq!(talk.messages(), [user("c"), assistant("yes"), user("a")]);
        talk.hear("no");
        assert!(talk.say(&prompts, 2, place).is_none());
    }

    #[test]
    fn a_recorded_conversation_is_followed_and_may_be_shorter() {
        let prompts = [prompt("a", &["b"]), prompt("x", &[])];
        let mut talk = Talk::new(0);
        for expected in ["a", "b"] {
            talk.say(&prompts, 5, |n| n as usize).unwrap();
            assert_eq!(talk.messages().last(), Some(&user(expected)));
            talk.hear("ok");
        }
        assert!(talk.say(&prompts, 5, |n| n as usize).is_none());
    }
}
