//! `acquire` of the smooth form: one question, and the permit that comes next is promised, in
//! order.

use std::thread;
use std::time::{Duration, Instant};

use distlock::Client;

use super::{
    CloseAtEnd, LONG, SOON, everywhere, get, in_memory, ms, open, pttl, questions_per_permit, run,
    take_all,
};
use crate::support::{Fault, Proxy, Rule, Server, eventually, within};

/// The server's time: seconds, and microseconds.
type Time = (u64, u64);

const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

#[test]
fn fifty_threads_ask_once_for_each_permit() {
    let server = Server::start();
    let limiter = open(&server).rate_limiter("ip", 10, ms(100)).smooth();
    let start = Instant::now();
    let questions = questions_per_permit(&server, &limiter, 4);
    // A little more if an answer is late, on a busy machine.
    assert!((1.0..1.2).contains(&questions), "{questions} questions for each permit");
    assert!(
        start.elapsed() >= ms(1900),
        "200 permits of which 10 are there and 100 a second come back: {:?}",
        start.elapsed()
    );
}

#[test]
fn permits_go_out_in_the_order_of_asking_and_checks_come_after_them() {
    let (client, clock) = in_memory();
    let limiter = client.rate_limiter("ip", 2, ms(2000)).smooth();
    assert_eq!(take_all(&limiter).0, 2);
    thread::scope(|scope| {
        let _closing = CloseAtEnd(&client);
        let mut waiters = Vec::new();
        for before in 1..=5_u32 {
            waiters.push(scope.spawn(|| limiter.acquire(LONG).unwrap()));
            eventually(SOON, || limiter.check().unwrap().retry_after == ms(1000) * (before + 1));
            assert_eq!(limiter.check_n(2).unwrap().retry_after, ms(1000) * (before + 2));
            assert!(limiter.check_n(0).unwrap().allowed, "a look is never refused");
        }
        for (before, waiter) in waiters.into_iter().enumerate() {
            clock.advance(ms(999));
            assert!(
                !waiter.is_finished() && !limiter.check().unwrap().allowed,
                "{before}: not yet"
            );
            clock.advance(ms(1));
            assert!(within(..SOON, || waiter.join().unwrap()));
        }
        assert_eq!(limiter.check().unwrap().retry_after, ms(1000));
    });
}

#[test]
fn a_permit_that_would_come_too_late_is_not_promised() {
    let server = Server::start();
    let client = open(&server);
    let limiter = client.rate_limiter("ip", 1, LONG).smooth();
    assert!(limiter.check().unwrap().allowed);
    let (state, scripts) = (get(&server, limiter.key()), server.command_count("evalsha"));
    for timeout in [Duration::ZERO, ms(1), LONG / 2] {
        within(..SOON, || assert!(!limiter.acquire(timeout).unwrap()));
    }
    assert_eq!(get(&server, limiter.key()), state, "nothing was taken");
    assert_eq!(server.command_count("evalsha") - scripts, 3);
}

#[test]
fn a_sleeper_asks_no_second_time_even_if_its_promise_is_forgotten() {
    let server = Server::start();
    let limiter = open(&server).rate_limiter("ip", 1, ms(700)).smooth();
    let start = Instant::now();
    assert!(limiter.check().unwrap().allowed);
    let scripts = server.command_count("evalsha");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| limiter.acquire(SOON).unwrap());
        eventually(SOON, || server.command_count("evalsha") == scripts + 1);
        run(&server, &["FLUSHALL"]);
        assert!(waiter.join().unwrap());
        assert!(start.elapsed() >= ms(700), "not before its time: {:?}", start.elapsed());
    });
    assert_eq!(server.command_count("evalsha"), scripts + 1);
    assert!(limiter.check().unwrap().allowed, "the server knows of none");
}

#[test]
fn a_slow_question_makes_no_permit_come_early() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let limiter = Client::open(&proxy.url()).unwrap().rate_limiter("ip", 1, ms(1000)).smooth();
    assert!(limiter.check().unwrap().allowed);
    thread::sleep(ms(1000));
    for delay in [(ms(400), Duration::ZERO), (Duration::ZERO, ms(400))] {
        let start = Instant::now();
        assert!(limiter.acquire(SOON).unwrap());
        proxy.set_delay(delay.0, delay.1);
        assert!(limiter.acquire(SOON).unwrap());
        assert!(start.elapsed() >= ms(1000), "{delay:?}: {:?}", start.elapsed());
        proxy.set_delay(Duration::ZERO, Duration::ZERO);
        thread::sleep(ms(1000));
    }
}

#[test]
fn a_promise_whose_answer_was_lost_is_not_given_back() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let client = Client::builder(&proxy.url()).command_timeout(ms(1_500)).build().unwrap();
    let limiter = client.rate_limiter("ip", 10, LONG).smooth();
    assert!(limiter.check().unwrap().allowed);
    let fault = proxy.add(Rule::on("EVALSHA", Fault::SwallowReply).next(1));
    assert!(limiter.acquire(SOON).unwrap());
    assert_eq!((fault.fired(), limiter.check_n(0).unwrap().remaining), (1, 7));
}

#[test]
fn closing_ends_the_sleep_and_the_permit_stays_taken() {
    let server = Server::start();
    let [closed, other] = [open(&server), open(&server)]
        .map(|client| (client.rate_limiter("ip", 1, LONG).smooth(), client));
    assert!(other.0.check().unwrap().allowed);
    let scripts = server.command_count("evalsha");
    thread::scope(|scope| {
        let _closing = CloseAtEnd(&closed.1);
        let waiter = scope.spawn(|| closed.0.acquire(Duration::MAX).unwrap_err());
        // The script is new to this client, not to the server.
        eventually(SOON, || {
            server.command_count("evalsha") > scripts && other.0.check().unwrap().retry_after > LONG
        });
        closed.1.close(SOON).unwrap();
        assert!(within(..SOON, || waiter.join().unwrap()).is_closed());
    });
    assert!(other.0.check().unwrap().retry_after > LONG, "stricter, never laxer");
}

#[test]
fn the_state_lives_as_long_as_its_promises() {
    let server = Server::start();
    let client = open(&server);
    let limiter = client.rate_limiter("ip", 1, LONG).smooth();
    assert!(limiter.check().unwrap().allowed);
    thread::scope(|scope| {
        let _closing = CloseAtEnd(&client);
        for promised in 1..=3_i64 {
            let waiter = limiter.clone();
            scope.spawn(move || waiter.acquire(LONG * 60).unwrap_err());
            let life = 60_000 * promised;
            eventually(SOON, || {
                pttl(&server, limiter.key()) > life && pttl(&server, limiter.key()) <= life + 60_000
            });
        }
        client.close(SOON).unwrap();
    });
}

#[test]
fn a_clock_that_is_set_back_forgets_no_promise() {
    let server = Server::start();
    let limiter = open(&server).rate_limiter("ip", 3, ms(300)).smooth();
    let (seconds, _): (u64, u64) = redis::cmd("TIME").query(&mut server.connection()).unwrap();
    // Three permits in use and two promised, an hour ahead.
    let state = format!("5 {}000000 100000", seconds + 3600);
    run(&server, &["SET", limiter.key(), &state, "PX", "3600000"]);
    let start = Instant::now();
    let refused = limiter.check().unwrap();
    assert!(!refused.allowed && refused.retry_after == ms(300), "{refused:?}");
    assert!(limiter.acquire(SOON).unwrap());
    assert!(
        (ms(300)..SOON).contains(&start.elapsed()),
        "after the two, and not in an hour: {:?}",
        start.elapsed()
    );
    assert!(pttl(&server, limiter.key()) <= 600);
}

#[test]
fn a_window_of_a_hundred_years_and_an_endless_wait_are_accepted() {
    everywhere(|client| {
        let limiter = client.rate_limiter("ip", 1, 100 * YEAR).smooth();
        assert!(limiter.check().unwrap().allowed);
        thread::scope(|scope| {
            let _closing = CloseAtEnd(client);
            let waiter = scope.spawn(|| limiter.acquire(Duration::MAX).unwrap_err());
            eventually(SOON, || {
                (199 * YEAR..=200 * YEAR).contains(&limiter.check().unwrap().retry_after)
            });
            assert!(
                !within(..SOON, || limiter.acquire(Duration::MAX).unwrap()),
                "two hundred years"
            );
            client.close(SOON).unwrap();
            assert!(waiter.join().unwrap().is_closed());
        });
    });
}

/// Calls the script itself, for callers with these timeouts: in no period do more permits come due
/// than were there at first and came back meanwhile.
#[test]
fn in_no_period_do_more_permits_come_due_than_were_there_and_came_back() {
    const SCRIPT: &str = include_str!("../../../src/limiter/smooth.lua");
    const COUNT: u64 = 7;
    const WINDOW: u64 = 50_000;
    let server = Server::start();
    let mut connection = server.connection();
    let micros = |(seconds, micros): Time| seconds * 1_000_000 + micros;
    // When permits came due, at the earliest and at the latest, and how many.
    let mut due: Vec<(u64, u64, u64)> = Vec::new();
    let mut promised = 0;
    for call in 0..1500_u64 {
        let (wanted, patience) =
            (1 + call * 7 % 3, [0, 1_000, 20_000, 300_000][(call * 5 % 4) as usize]);
        let mut pipe = redis::pipe();
        pipe.cmd("TIME")
            .cmd("EVAL")
            .arg(SCRIPT)
            .arg(1)
            .arg("ip")
            .arg(COUNT)
            .arg(WINDOW)
            .arg(wanted)
            .arg(patience)
            .cmd("TIME");
        let (before, (taken, _, wait, _), after): (Time, (u64, u64, u64, u64), Time) =
            pipe.query(&mut connection).unwrap();
        if taken == 1 {
            assert!(wait <= patience, "{wait} of {patience}");
            due.push((micros(before) + wait, micros(after) + wait, wanted));
            promised += u64::from(wait > 0);
        } else {
            assert!(wait > patience, "{wait} of {patience}");
            thread::sleep(Duration::from_micros(wait.min(2_000)));
        }
    }
    assert!(promised > 50 && due.len() > 100, "{promised} promises, {} permits", due.len());
    for (first, (start, ..)) in due.iter().enumerate() {
        let mut sum = 0;
        for (_, end, permits) in &due[first..] {
            sum += permits;
            let most = COUNT as f64 * (1.0 + end.saturating_sub(*start) as f64 / WINDOW as f64);
            assert!(sum as f64 <= most + 1e-3, "{sum} come due in {} µs", end - start);
        }
    }
}
