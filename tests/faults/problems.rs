//! What is wrong with a row, and what follows from that: a verdict, or one more try.

/// What a problem says of its row, from the least to the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// The row has shown too little to be judged.
    Little,
    /// Something took longer than it may, or what takes too long causes: a busy machine does that,
    /// too.
    Late,
    /// A promise was broken, and no load of the machine excuses that.
    Red,
}

/// A problem in words.
pub type Problem = (Class, String);

/// The problems of the list whose condition is true.
pub fn those<const N: usize>(list: [(bool, Class, String); N]) -> Vec<Problem> {
    list.into_iter().filter(|(is_so, ..)| *is_so).map(|(_, class, what)| (class, what)).collect()
}

/// The verdict on a row: its worst problem.
pub fn verdict(problems: &[Problem]) -> Option<Class> {
    problems.iter().map(|(class, _)| *class).max()
}

/// A verdict in a word, as it stands at the end of a row's line.
pub fn word(verdict: Option<Class>) -> &'static str {
    match verdict {
        None => "green",
        Some(Class::Little) => "inconclusive",
        Some(Class::Late) => "late",
        Some(Class::Red) => "red",
    }
}

/// The verdict at the end of a row's line. A line that ends in no verdict is red.
pub fn verdict_of(line: &str) -> Option<Class> {
    let is = |verdict: &Option<Class>| line.ends_with(&format!("| {} |", word(*verdict)));
    let verdicts = [None, Some(Class::Little), Some(Class::Late)];
    verdicts.into_iter().find(is).unwrap_or(Some(Class::Red))
}

/// A problem as it stands among the remarks.
pub fn remark((class, what): &Problem) -> String {
    format!("{}: {what}", word(Some(*class)))
}

/// The problems among the remarks of a line, which are its last cell but one.
pub fn reasons(line: &str) -> String {
    let remarks = line.rsplit('|').nth(2).unwrap_or_default().trim();
    let is_problem = |remark: &&str| {
        [Class::Little, Class::Late, Class::Red]
            .iter()
            .any(|class| remark.starts_with(&format!("{}: ", word(Some(*class)))))
    };
    remarks.split("; ").filter(is_problem).collect::<Vec<_>>().join("; ")
}

/// Whether a row with this line has to run again: only what no load excuses is red at once.
pub fn is_open(line: &str) -> bool {
    matches!(verdict_of(line), Some(Class::Late | Class::Little))
}

/// Runs a row again, twice at most, while its line is open: `again` gets the line, and how many
/// seeds to go on from the first one. Returns the line that counts, and how the tries ended. A
/// client that breaks a promise of time is late each time, so the third open line is a red one.
pub fn settle(first: String, mut again: impl FnMut(&str, u64) -> String) -> (String, String) {
    let (mut line, mut ends) = (first, Vec::new());
    for seeds in 0..2 {
        if !is_open(&line) {
            break;
        }
        ends.push(word(verdict_of(&line)));
        line = again(&line, seeds);
    }
    let last = word(verdict_of(&line));
    ends.push(last);
    let how = if ends.iter().all(|end| *end == last) && ends.len() == 3 {
        format!("{last} three times")
    } else {
        ends.join(", ")
    };
    if is_open(&line) {
        let whole = line.strip_suffix(&format!(" | {last} |")).unwrap_or(&line);
        line = format!("{whole}; {how} | red |");
    }
    (line, how)
}
