//! The text of a file as the checkers read it: without comments and strings, and word by word.

/// The words of the text: names, `::`, and every other character by itself.
pub(crate) fn words(code: &str) -> Vec<&str> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut words = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if is_name(first) {
            rest.find(|c| !is_name(c)).unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        words.push(&rest[..length]);
        rest = rest[length..].trim_start();
    }
    words
}

/// The text with every comment, string and character taken out; its lines stay.
pub(crate) fn without_comments_and_strings(text: &str) -> String {
    let mut code = String::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if rest.starts_with("r\"") || rest.starts_with("r#\"") {
            let end = if rest.starts_with("r#") { "\"#" } else { "\"" };
            rest[3..].find(end).map_or(rest.len(), |at| 3 + at + end.len())
        } else if c == '"' {
            1 + end_of_literal(&rest[1..], '"')
        } else if c == '\'' && is_character(rest) {
            1 + end_of_literal(&rest[1..], '\'')
        } else {
            0
        };
        if skipped == 0 {
            code.push(c);
            rest = &rest[c.len_utf8()..];
        } else {
            code.extend(rest[..skipped].chars().filter(|c| *c == '\n'));
            code.push(' ');
            rest = &rest[skipped..];
        }
    }
    code
}

/// Whether a quote begins a character, as opposed to a lifetime.
fn is_character(text: &str) -> bool {
    let mut after = text.chars().skip(1);
    after.next() == Some('\\') || after.next() == Some('\'')
}

fn end_of_literal(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}
