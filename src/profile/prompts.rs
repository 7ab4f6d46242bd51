//! Files of prompts: lines of text, lines of JSON, and conversations as ShareGPT and OpenAI write them.

use std::path::Path;

use serde_json::Value as Json;

use super::fault::Fault;
use super::model::Prompt;
use super::read;

/// The largest file of prompts that is read.
const MAX_PROMPTS_BYTES: u64 = 256 << 20;

/// Reads a file of prompts: `.jsonl` an object in each line, `.json` a list of such objects, any other a prompt in each
/// line.
pub(super) fn read_file(path: &Path) -> Result<Vec<Prompt>, Fault> {
    let text = read::text(path, MAX_PROMPTS_BYTES)?;
    let stem = path.file_stem().map_or_else(|| "prompt".into(), |stem| stem.to_string_lossy().into_owned());
    let ending = path.extension().map(|ending| ending.to_string_lossy().into_owned()).unwrap_or_default();
    let prompts = match ending.as_str() {
        "json" => of_list(&text, &stem, path)?,
        ending => of_lines(&text, &stem, ending == "jsonl", path)?,
    };
    if prompts.is_empty() {
        return Err(Fault::new("bad_prompts", format!("`{}` holds no prompts", path.display())));
    }
    Ok(prompts)
}

fn own_id(stem: &str, number: usize) -> String {
    format!("{stem}-{number:03}")
}

fn bad(what: &str, path: &Path, why: &str) -> Fault {
    Fault::new("bad_prompts", format!("{what} of `{}` {why}", path.display())).help(
        "each is an object with `text` or `prompt`: {\"id\": \"a1\", \"text\": \"…\"}, or with a conversation under `messages` or `conversations`",
    )
}

fn of_lines(text: &str, stem: &str, is_json: bool, path: &Path) -> Result<Vec<Prompt>, Fault> {
    let mut prompts = Vec::new();
    for (number, line) in text.lines().enumerate().map(|(index, line)| (index + 1, line.trim())) {
        if line.is_empty() {
            continue;
        }
        let id = own_id(stem, number);
        prompts.push(match is_json {
            true => of_line(line, id).map_err(|why| bad(&format!("line {number}"), path, &why))?,
            false => Prompt { id, text: line.to_owned(), then: Vec::new() },
        });
    }
    Ok(prompts)
}

fn of_list(text: &str, stem: &str, path: &Path) -> Result<Vec<Prompt>, Fault> {
    let whole: Json = serde_json::from_str(text)
        .map_err(|error| Fault::new("bad_prompts", format!("`{}` is not JSON: {error}", path.display())))?;
    let Json::Array(items) = whole else {
        return Err(Fault::new("bad_prompts", format!("`{}` is no list", path.display()))
            .help("a `.json` file is a list of objects, as ShareGPT's; one object in each line is a `.jsonl` file"));
    };
    let items = items.iter().enumerate().map(|(index, item)| (index + 1, item));
    // ShareGPT has conversations in which no person says anything: they are no prompts, and no fault either.
    let said = items.filter(|(_, item)| !is_silent(item));
    said.map(|(number, item)| {
        of_object(item, own_id(stem, number)).map_err(|why| bad(&format!("item {number}"), path, &why))
    })
    .collect()
}

fn of_line(line: &str, own_id: String) -> Result<Prompt, String> {
    let value: Json = serde_json::from_str(line).map_err(|error| {
        // The line of a one-line text is always 1, and would be taken for the file's.
        let words = error.to_string();
        format!("is not JSON: {}", words.split(" at line ").next().unwrap_or(&words))
    })?;
    of_object(&value, own_id)
}

fn of_object(value: &Json, own_id: String) -> Result<Prompt, String> {
    let text = value.get("text").or_else(|| value.get("prompt")).and_then(Json::as_str);
    let mut said = match (text, turns(value)) {
        (Some(text), _) => vec![text.to_owned()],
        (None, Some(turns)) => turns,
        (None, None) => return Err("has no text under `text` or `prompt`".to_owned()),
    };
    if said.first().is_none_or(|text| text.trim().is_empty()) {
        return Err("has an empty text".to_owned());
    }
    let id = match value.get("id") {
        Some(Json::String(id)) => id.clone(),
        Some(Json::Number(id)) => id.to_string(),
        None => own_id,
        Some(_) => return Err("has an `id` that is neither a text nor a number".to_owned()),
    };
    let text = said.remove(0);
    Ok(Prompt { id, text, then: said })
}

/// What the person says in a conversation: `conversations` of ShareGPT (`from`, `value`) or `messages` of OpenAI (`role`,
/// `content`).
fn turns(value: &Json) -> Option<Vec<String>> {
    let turns = value.get("conversations").or_else(|| value.get("messages"))?.as_array()?;
    let said = turns.iter().filter_map(|turn| {
        let who = turn.get("from").or_else(|| turn.get("role"))?.as_str()?;
        let text = turn.get("value").or_else(|| turn.get("content"))?.as_str()?;
        (matches!(who, "human" | "user") && !text.trim().is_empty()).then(|| text.to_owned())
    });
    Some(said.collect())
}

/// Whether it is a conversation in which nobody asks anything.
fn is_silent(value: &Json) -> bool {
    turns(value).is_some_and(|said| said.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_prompts_is_an_object_with_a_text() {
        let read = |line: &str| of_line(line, "f-001".to_owned());
        let plain = |id: &str| Prompt { id: id.to_owned(), text: "hi".to_owned(), then: Vec::new() };
        assert_eq!(read(r#"{"text": "hi"}"#).unwrap(), plain("f-001"));
        assert_eq!(read(r#"{"id": 7, "prompt": "hi"}"#).unwrap(), plain("7"));
        for (line, why) in [
            ("{", "is not JSON: EOF while parsing an object"),
            (r#"{"txt": "hi"}"#, "has no text under `text` or `prompt`"),
            (r#"{"text": " "}"#, "has an empty text"),
            (r#"{"text": "a", "id": []}"#, "has an `id` that is neither a text nor a number"),
            (r#""hi""#, "has no text under `text` or `prompt`"),
            (r#"{"conversations": [{"from": "gpt", "value": "hi"}]}"#, "has an empty text"),
        ] {
            assert_eq!(read(line).unwrap_err(), why, "{line}");
        }
    }

    #[test]
    fn a_conversation_is_what_its_person_said() {
        let list = r#"[
            {"id": "x", "conversations": [{"from": "human", "value": "one"}, {"from": "gpt", "value": "no"}, {"from": "human", "value": "two"}]},
            {"id": "silent", "conversations": [{"from": "gpt", "value": "no"}]},
            {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "three"}]}]"#;
        let prompts = of_list(list, "f", Path::new("f.json")).unwrap();
        assert_eq!(
            prompts,
            [
                Prompt { id: "x".into(), text: "one".into(), then: vec!["two".into()] },
                Prompt { id: "f-003".into(), text: "three".into(), then: Vec::new() },
            ]
        );
        let message = of_list("{}", "f", Path::new("f.json")).unwrap_err().message.clone();
        assert!(message.contains("is no list"), "{message}");
    }
}
