//! The fault driver: load by real processes, faults by row of the matrix, and checkers of the
//! histories. See `tests/faults/run`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod admin;
mod buffer;
mod check;
mod clock;
mod findings;
mod history;
mod judge;
mod leaks;
mod legend;
mod limits;
mod load;
mod machine;
mod model;
mod problems;
mod progress;
mod report;
mod rooms;
mod rows;
mod samples;
mod substance;
#[allow(dead_code)]
#[path = "../it/support/mod.rs"]
mod support;
mod third_party;
mod tune;
mod verdict;
mod witness;
mod worker;
mod world;

use tune::Size;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match &words[..] {
        ["client", ..] => load::run(&arguments[1..]),
        ["row", size, seed, number] => {
            let number: u32 = number.parse().expect("a number");
            let row = rows::all()
                .into_iter()
                .find(|row| row.number == number)
                .expect("a row of the matrix");
            println!("LINE {}", judge::run(&row, size_of(size), seed.parse().expect("a seed")));
        }
        [size @ ("quick" | "full" | "soak"), rest @ ..] => {
            std::process::exit(report::run(size_of(size), rest))
        }
        _ => println!(
            "the fault driver runs by tests/faults/run quick|full|soak [seed] [row …], and does \
             nothing without a word"
        ),
    }
}

fn size_of(word: &str) -> Size {
    match word {
        "quick" => Size::Quick,
        "full" => Size::Full,
        _ => Size::Soak,
    }
}
