//! The command line of a bench.

use std::env;

use super::placement::Place;

/// The settings of one run.
pub struct Args {
    /// A short run, to check that everything works; its numbers mean little.
    pub quick: bool,
    /// Leaves out the drivers in `tests/peers`.
    pub alone: bool,
    /// Only the contenders whose names contain this; for profiling.
    only: Option<String>,
    /// Where client and server run, if not where the bench puts them by default.
    place: Option<Place>,
}

impl Args {
    /// Reads the command line. In a process that was started as a contender's driver, this never
    /// returns.
    pub fn parse() -> Self {
        let words: Vec<String> = env::args().skip(1).collect();
        if let [flag, name, url] = words.as_slice()
            && flag == "--driver"
        {
            super::driver::run(name, url);
        }
        let mut args = Self { quick: false, alone: false, only: None, place: None };
        for word in &words {
            match word.as_str() {
                "--quick" => args.quick = true,
                "--alone" => args.alone = true,
                "--place=one" => args.place = Some(Place::One),
                "--place=split" => args.place = Some(Place::Split),
                "--place=free" => args.place = Some(Place::Free),
                // The argument that cargo adds.
                "--bench" => {}
                _ => match word.strip_prefix("--only=") {
                    Some(text) => args.only = Some(text.to_lowercase()),
                    None => {
                        eprintln!(
                            "{word}: unknown. There are --quick, --alone (without the peers), \
                             --only=TEXT, --place=one|split|free"
                        );
                        std::process::exit(64);
                    }
                },
            }
        }
        args
    }

    /// Puts this process where it belongs, and prints the head of the report. The bench's own
    /// choice applies unless the command line gives another.
    pub fn begin(&self, title: &str, place: Place) -> Place {
        let place = self.place(place);
        place.of_clients();
        println!("## {title}\n");
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split(' ').next().unwrap_or_default();
        println!(
            "{}`cargo bench --bench {}{}`, {}. {}; load average at the start: {load}.\n",
            if self.quick { "A quick run: numbers worth little. " } else { "" },
            env!("CARGO_CRATE_NAME"),
            words(),
            today(),
            place.in_words()
        );
        place
    }

    /// The placement of the command line, or else this one.
    pub fn place(&self, place: Place) -> Place {
        self.place.unwrap_or(place)
    }

    /// Whether the contender of this name takes part.
    pub fn takes(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.to_lowercase().contains(only))
    }

    /// `quick` in a quick run, otherwise `full`.
    pub fn pick<T>(&self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }
}

/// The command line, as it would be typed.
fn words() -> String {
    let words: Vec<String> = env::args().skip(1).filter(|word| word != "--bench").collect();
    if words.is_empty() { String::new() } else { format!(" -- {}", words.join(" ")) }
}

/// The date from the system; the environment variable DATE overrides it.
fn today() -> String {
    env::var("DATE").unwrap_or_else(|_| {
        let date = std::process::Command::new("date").arg("+%F").output().unwrap();
        String::from_utf8(date.stdout).unwrap().trim().to_owned()
    })
}
