//! What counts as a name.

/// Whether a text can stand in the name of a file or a folder.
pub(crate) fn is_name(text: &str) -> bool {
    text.len() <= 100
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b'+'))
}

pub(crate) fn is_env_name(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with(|c: char| c.is_ascii_digit())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

pub(super) fn is_flag(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
}

pub(super) fn is_requirement(text: &str) -> bool {
    text.split(',').all(|part| {
        let part = part.trim();
        let operator = ["==", ">=", "<=", "!=", "~=", ">", "<"].into_iter().find(|op| part.starts_with(op));
        let version = part[operator.map_or(0, str::len)..].trim_start();
        version.starts_with(|c: char| c.is_ascii_alphanumeric())
            && version.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b'+'))
            && version.bytes().any(|b| b.is_ascii_digit())
    })
}
