//! Random replies, through the parser of redis-rs and through everything here that reads one:
//! nothing panics, and nothing but a legal grant is a grant.
//!
//! `cargo test` runs some; `DISTLOCK_FUZZ=20000000 cargo test --release --lib fuzz -- --nocapture`
//! as many as that says, and `DISTLOCK_FUZZ_SEED` begins elsewhere.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use redis::Value;

use super::inbox::{self, channels::Channels};
use super::layout::answers;
use crate::base::bell::{Bell, Fences, Rung};
use crate::base::clock::Clock;
use crate::lease::store::Answer;
use crate::lease::token::Token;
use crate::server::call::Reply;
use crate::server::reply;

/// The generator of Steele, Lea and Flood that is known as SplitMix64: small, and the same
/// everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap_or(0)
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// How many, and from where.
fn begin(usually: u64) -> (u64, Random) {
    let set = |name| std::env::var(name).ok().and_then(|text: String| text.parse().ok());
    let (count, seed) =
        (set("DISTLOCK_FUZZ").unwrap_or(usually), set("DISTLOCK_FUZZ_SEED").unwrap_or(1));
    eprintln!("fuzz: {count} executions from seed {seed}");
    (count, Random(seed))
}

const NUMBERS: [&str; 14] = [
    "0",
    "1",
    "2",
    "3",
    "-1",
    "-2",
    "30000",
    "1753000000000000",
    "9007199254740993",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
    "",
    "x",
];
const TEXTS: [&str; 10] =
    ["", "OK", "1", "0", "-1", "QUEUED", "0a1b2c", "\u{fffd}", "9223372036854775808", "a b"];
const ERRORS: [&str; 14] = [
    "ERR",
    "ERR unknown command 'EVALSHA', with args beginning with: 'x'",
    "NOSCRIPT No matching script",
    "WRONGTYPE Operation against a key",
    "LOADING",
    "BUSY",
    "MOVED 1 a:1",
    "OOM command not allowed",
    "NOAUTH",
    "NOPERM",
    "READONLY",
    "MASTERDOWN",
    "",
    "\u{1F512}",
];

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

/// One frame: often what a script of ours says, or nearly so.
fn frame(random: &mut Random, depth: usize) -> String {
    let number = |random: &mut Random| format!(":{}\r\n", random.pick(&NUMBERS));
    match random.below(if depth == 0 { 13 } else { 20 }) {
        0..=3 => number(random),
        4 => bulk(random.pick(&NUMBERS)),
        5 => bulk(random.pick(&TEXTS)),
        6 => format!("+{}\r\n", random.pick(&TEXTS)),
        7 => format!("-{}\r\n", random.pick(&ERRORS)),
        8 => random.pick(&["$-1\r\n", "*-1\r\n", "_\r\n", "+OK\r\n"]).to_owned(),
        9 => random.pick(&["#t\r\n", "#f\r\n", ",1\r\n", ",inf\r\n", ",nan\r\n"]).to_owned(),
        10 => format!("({}\r\n", random.pick(&NUMBERS)),
        11 => random.pick(&["=5\r\ntxt:1\r\n", "!3\r\nERR\r\n"]).to_owned(),
        12 => format!("${}\r\n", random.pick(&NUMBERS)),
        kind => {
            let elements = random.below(4);
            let sort = random.pick(if kind < 18 { &["*"] } else { &["*", "~", ">", "%", "|"] });
            let declared = if random.below(12) == 0 {
                random.pick(&NUMBERS).to_owned()
            } else {
                elements.to_string()
            };
            let doubled = if matches!(sort, "%" | "|") { elements * 2 } else { elements };
            let inner: String = (0..doubled).map(|_| frame(random, depth - 1)).collect();
            format!("{sort}{declared}\r\n{inner}")
        }
    }
}

/// A legal reply, or one that is not far from it.
fn bytes(random: &mut Random) -> Vec<u8> {
    let mut bytes = match random.below(3) {
        0 => {
            let number = |random: &mut Random| {
                let number = random.pick(&NUMBERS);
                if random.below(3) == 0 { bulk(number) } else { format!(":{number}\r\n") }
            };
            format!(
                "*3\r\n:{}\r\n{}{}",
                random.pick(&["0", "1", "2"]),
                number(random),
                number(random)
            )
        }
        1 => {
            let held = format!("{}:{}\r\n", bulk(random.pick(&TEXTS)), random.pick(&NUMBERS));
            let held = if random.below(2) == 0 { "*0\r\n".into() } else { format!("*2\r\n{held}") };
            let waiting = format!("*1\r\n{}", bulk(random.pick(&TEXTS)));
            format!("*3\r\n{held}:{}\r\n{waiting}", random.pick(&NUMBERS))
        }
        _ => frame(random, 3),
    }
    .into_bytes();
    if random.below(3) == 0 {
        for _ in 0..=random.below(3) {
            let at = random.below(bytes.len() + 1);
            let byte = random.next().to_le_bytes()[0];
            match random.below(4) {
                0 if at < bytes.len() => drop(bytes.remove(at)),
                1 if at < bytes.len() => bytes[at] = byte,
                2 => bytes.insert(at, random.pick(b"*$:+-_\r\n019%~>|=!,#(")),
                3 => bytes.truncate(at.max(1)),
                _ => bytes.insert(at, byte),
            }
        }
    }
    bytes
}

/// What a number is, wherever Redis may write one.
fn whole(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok()?.parse().ok(),
        _ => None,
    }
}

/// The fences of a grant, if they are legal.
fn legal_fences(elements: &[Value]) -> Option<Option<Fences>> {
    let [_, last, count] = elements else { return None };
    let last = u64::try_from(whole(last)?).ok()?;
    let count = u32::try_from(whole(count)?).ok()?;
    match last {
        0 => Some(None),
        last => (count > 0).then_some(Some(Fences { last, count })),
    }
}

/// Every reader of a reply against what it may take for what, said anew.
fn check(value: &Value) {
    let elements = match value {
        Value::Array(elements) => elements.as_slice(),
        _ => &[],
    };
    let asked_at = Instant::now();
    match answers::answer(&Reply::unconfirmed(asked_at, value.clone())) {
        Ok(Answer::Granted { asked_at: since, fences }) => {
            assert!(
                since == asked_at && elements.len() == 3 && elements[0] == Value::Int(1),
                "a grant: {value:?}"
            );
            assert_eq!(legal_fences(elements), Some(fences), "{value:?}");
        }
        Ok(Answer::Refused { remaining, heard, .. }) => {
            assert!(
                elements[0] == Value::Int(0) && matches!(elements[1], Value::Int(_)),
                "a refusal: {value:?}"
            );
            match &elements[2..] {
                [] => assert!(heard),
                rest => assert_eq!(heard, rest == [Value::Int(1)]),
            }
            assert_eq!(remaining.is_some(), whole(&elements[1]).is_some_and(|left| left >= 0));
        }
        Err(error) => {
            // Foreign data is for sure; of anything else nobody knows what it did.
            assert!(error.may_have_run != error.permanent, "{value:?}: {error:?}");
            assert!(
                elements.first() != Some(&Value::Int(1)) || legal_fences(elements).is_none(),
                "a grant is lost: {value:?}"
            );
        }
    }
    assert_eq!(
        answers::yes(value).ok(),
        [Value::Int(0), Value::Int(1)].iter().position(|word| word == value).map(|at| at == 1)
    );
    assert_eq!(reply::number(value).ok(), whole(value));
    if let Ok(state) = answers::state(value) {
        let [Value::Array(held), fence, Value::Array(waiting)] = elements else {
            panic!("a state: {value:?}");
        };
        assert_eq!(held.len(), state.held.len() * 2);
        for (held, words) in state.held.iter().zip(held.chunks_exact(2)) {
            assert_eq!(reply::bytes(&words[0]).ok(), Some(held.token.as_bytes()));
            assert!(matches!(words[1], Value::Int(_)), "a holder: {value:?}");
        }
        assert_eq!(
            state.fence,
            whole(fence).and_then(|fence| u64::try_from(fence).ok()).filter(|fence| *fence > 0)
        );
        assert_eq!(waiting.len(), state.waiting.len());
    }
    let is_error = matches!(value, Value::ServerError(_));
    assert_eq!(reply::value(value.clone()).is_err(), is_error);
    if let Err(error) = reply::value(value.clone()) {
        assert!(
            !error.may_have_run,
            "an error reply: the command was refused before it ran: {error:?}"
        );
        assert!(error.source.is_none_or(|source| source.to_string().len() < 1_000));
    }
    assert_eq!(reply::logged_in(value.clone()).is_err(), is_error);
    assert!(!(reply::unknown_script(value) || reply::turned_away(value)) || is_error);
}

#[test]
fn nothing_but_a_legal_grant_is_a_grant() {
    let (count, mut random) = begin(200_000);
    let (mut parsed, mut granted, mut seen) = (0_u64, 0_u64, 0_u64);
    for _ in 0..count {
        let bytes = bytes(&mut random);
        if let Ok(value) = redis::parse_redis_value(&bytes) {
            parsed += 1;
            granted += u64::from(matches!(
                answers::answer(&Reply::unconfirmed(Instant::now(), value.clone())),
                Ok(Answer::Granted { .. })
            ));
            seen += u64::from(answers::state(&value).is_ok());
            check(&value);
        }
    }
    eprintln!(
        "fuzz: {parsed} of {count} replies were RESP, {granted} of them grants, {seen} states"
    );
    assert!(
        parsed > count / 4 && granted > count / 100 && seen > count / 100,
        "the replies are not what they should be: {parsed}, {granted}, {seen}"
    );
}

#[test]
fn a_message_is_a_hand_off_only_with_all_its_words() {
    let (count, mut random) = begin(200_000);
    let mut understood = 0_u64;
    for _ in 0..count {
        let words: Vec<&str> = (0..random.below(7))
            .map(|_| if random.below(2) == 0 { random.pick(&NUMBERS) } else { random.pick(&TEXTS) })
            .collect();
        let message = words.join(random.pick(&[" ", " ", " ", "  ", "\n"]));
        let mut parts = message.splitn(5, ' ');
        let mut next = || parts.next();
        let legal = (|| {
            Some((
                next()?.parse::<u64>().ok()?,
                next()?.parse::<u64>().ok()?,
                next()?.parse::<u32>().ok()?,
                next()?,
                next()?,
            ))
        })();
        let heard = inbox::parse(&message).map(|(grant, token, key)| {
            (grant.attempt, grant.fences, token.text(), key.as_str().to_owned())
        });
        understood += u64::from(heard.is_some());
        let legal = legal.map(|(attempt, last, count, token, key)| {
            let fences = (last > 0 && count > 0).then_some(Fences { last, count });
            (attempt, fences, token.to_owned(), key.to_owned())
        });
        assert_eq!(heard, legal, "{message:?}");
    }
    assert!(understood > count / 100, "{understood}");
}

/// What the channels of a client are meant to know.
#[derive(Default)]
struct Model {
    reading: bool,
    known: HashMap<usize, (bool, Vec<usize>)>,
}

#[test]
fn channels_ring_whoever_waits_and_nobody_else_whatever_comes_in_whatever_order() {
    const CHANNELS: [&str; 3] = ["a", "b", "c"];
    let (count, mut random) = begin(200_000);
    let clock = Clock::default();
    let (mut channels, mut model) = (Channels::default(), Model::default());
    let names = CHANNELS.map(Arc::<str>::from);
    let bells: Vec<Arc<Bell>> = (0..6).map(|_| Bell::new()).collect();
    let token = |waiter: usize| Token::new(waiter.to_string());
    for _ in 0..count {
        let (channel, waiter) = (random.below(names.len()), random.below(bells.len()));
        let waits =
            |model: &Model| model.known.values().any(|(_, waiting)| waiting.contains(&waiter));
        let mut rung: Vec<usize> = Vec::new();
        match random.below(7) {
            0 | 1 if !waits(&model) => {
                channels.join(&names[channel], &token(waiter), &bells[waiter]);
                let (stands, waiting) = model.known.entry(channel).or_default();
                waiting.push(waiter);
                rung.extend(stands.then_some(waiter));
            }
            2 => {
                channels.leave(&names[channel], &token(waiter));
                let known = model.known.get_mut(&channel);
                known.into_iter().for_each(|(_, waiting)| waiting.retain(|w| *w != waiter));
            }
            3 => {
                channels.heard(&names[channel]);
                rung.extend(model.known.get(&channel).and_then(|(_, waiting)| waiting.first()));
            }
            4 if model.reading => {
                if let Some(name) = channels.next_join() {
                    let at = names.iter().position(|known| *known == name).expect("one of them");
                    let (stands, waiting) = model.known.get_mut(&at).expect("somebody waits there");
                    assert!(!*stands && !waiting.is_empty());
                    channels.joined(&name);
                    *stands = true;
                    rung.extend(&*waiting);
                }
            }
            5 => {
                for name in channels.take_idle() {
                    let at = names.iter().position(|known| *known == name).expect("one of them");
                    assert!(
                        matches!(model.known.get(&at), Some((true, waiting)) if waiting.is_empty()),
                        "somebody waits at {name}"
                    );
                }
                model.known.retain(|_, (_, waiting)| !waiting.is_empty());
            }
            6 => {
                model.reading = random.below(4) > 0;
                if model.reading {
                    channels.begin();
                    model.known.values_mut().for_each(|(stands, _)| *stands = false);
                } else {
                    channels.end();
                }
            }
            _ => {}
        }
        assert!(!channels.wants_a_poke() || model.reading);
        for (waiter, bell) in bells.iter().enumerate() {
            assert_eq!(
                bell.wait(&clock, Some(Instant::now())) == Rung::Hint,
                rung.contains(&waiter),
                "waiter {waiter}"
            );
        }
    }
}
