//! Whoever waits for a server in vain is told why, and which server it is.

use std::error::Error as _;
use std::time::Duration;

use distlock::{Client, Error};
use log::Level;

use crate::helpers::{error, ms};
use crate::logs;
use crate::support::ports;

/// The text of what caused it.
pub fn cause(error: &Error) -> String {
    error.source().map(ToString::to_string).unwrap_or_default()
}

#[test]
fn every_error_of_an_outage_says_why_and_where() {
    let dead = ports::refused().to_string();
    let url = format!("redis://127.0.0.1:{dead}/");
    // The gate turns some of them away: they are told what others have found.
    for _ in 0..10 {
        let client = Client::builder(&url).max_outage(ms(200)).build().unwrap();
        let lock = client.lock("job");
        for error in [
            error(lock.lock()),
            error(lock.try_lock(Duration::ZERO)),
            error(lock.try_lock(ms(100))),
            error(client.rate_limiter("permits", 1, ms(100)).check()),
        ] {
            let text = format!("{error}: {}", cause(&error));
            assert!(text.contains("connection refused") && text.contains(&dead), "{text}");
        }
    }
}

#[test]
fn a_name_without_an_address_is_told_in_the_resolvers_words() {
    let client = Client::builder("redis://no-such-host.invalid/").max_outage(ms(200)).build();
    let error = error(client.unwrap().lock("job").lock());
    let text = format!("{error}: {}", cause(&error));
    assert!(text.contains("no-such-host.invalid:6379") && text.contains("lookup"), "{text}");
}

#[test]
fn a_call_that_waits_for_a_server_says_so_in_the_log() {
    logs::keep();
    let dead = ports::refused().to_string();
    let url = format!("redis://127.0.0.1:{dead}/");
    let client = Client::builder(&url).max_outage(ms(2_500)).build().unwrap();
    let waiting: Vec<_> = (0..4)
        .map(|i| {
            let lock = client.lock(&format!("waits-{i}"));
            std::thread::spawn(move || error(lock.lock()))
        })
        .collect();
    waiting.into_iter().for_each(|waiting| assert!(waiting.join().unwrap().is_unavailable()));
    let said = logs::lines(Level::Warn, &["has waited for the server", &dead, "refused"]);
    assert_eq!(said.len(), 1, "{said:?}");
}
