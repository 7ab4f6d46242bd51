//! Filling the texts of an engine's definition, and whether two names are of one thing.

use std::collections::BTreeMap;

use serde_json::Value;

/// Puts facts and settings in the place of their names in braces. A part in `[…]` is left out when a name in it is not
/// known; elsewhere such a name stays as it is.
pub fn fill(text: &str, facts: &BTreeMap<String, Value>, settings: &BTreeMap<String, String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('[') {
        let Some((part, after)) = after.split_once(']') else { break };
        out.push_str(&filled(before, facts, settings).0);
        let (part, whole) = filled(part, facts, settings);
        if whole {
            out.push_str(&part);
        }
        rest = after;
    }
    out.push_str(&filled(rest, facts, settings).0);
    out
}

/// The text with what is known, and whether all is.
fn filled(text: &str, facts: &BTreeMap<String, Value>, settings: &BTreeMap<String, String>) -> (String, bool) {
    let (mut out, mut rest, mut whole) = (String::new(), text, true);
    while let Some((before, after)) = rest.split_once('{') {
        out.push_str(before);
        let Some((name, after)) = after.split_once('}') else {
            out.push('{');
            rest = after;
            continue;
        };
        let known = settings.get(name).cloned().or_else(|| facts.get(name).map(told));
        match known {
            Some(value) => out.push_str(&value),
            None => {
                whole = false;
                out.push('{');
                out.push_str(name);
                out.push('}');
            }
        }
        rest = after;
    }
    out.push_str(rest);
    (out, whole)
}

fn told(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Whether a module's name (`qwen3_moe`) is that of a model's class (`Qwen3MoeForCausalLM`), versions aside.
pub(super) fn is_about(module: &str, class: &str) -> bool {
    let plain = |name: &str| -> String {
        name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
    };
    let letters = |name: &str| -> String { name.chars().take_while(char::is_ascii_alphabetic).collect() };
    let (module, class) = (plain(module), plain(class));
    let family = letters(&module);
    family.len() >= 3
        && (class.starts_with(&module)
            || letters(&class).strip_prefix(&family).is_some_and(|rest| {
                // `deepseek` of `deepseekv`; but `llama` is not of `llamaindex`.
                rest.is_empty()
                    || rest == "v"
                    || rest.starts_with("for")
                    || rest.starts_with("moe")
                    || rest.starts_with("lm")
            }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_not_known_is_left_out_with_its_words() {
        let facts = BTreeMap::from([("port".to_owned(), json!(30000))]);
        let settings = BTreeMap::from([("memory.fraction".to_owned(), "0.88".to_owned())]);
        let fill = |text| fill(text, &facts, &settings);
        assert_eq!(fill("port {port}[, by {who}][, now {memory.fraction}]: {other}"), "port 30000, now 0.88: {other}");
        assert_eq!(fill("a [ b"), "a [ b");
    }

    #[test]
    fn a_module_is_known_by_its_class() {
        for (module, class) in [
            ("deepseek_v2", "DeepseekV3ForCausalLM"),
            ("qwen3_moe", "Qwen3MoeForCausalLM"),
            ("llama", "LlamaForCausalLM"),
            ("qwen3_5", "Qwen3_5ForConditionalGeneration"),
        ] {
            assert!(is_about(module, class), "{module} {class}");
        }
        for (module, class) in [("mllama", "DeepseekV3ForCausalLM"), ("mllama", "LlamaForCausalLM"), ("grok", "Grogu")]
        {
            assert!(!is_about(module, class), "{module} {class}");
        }
    }
}
