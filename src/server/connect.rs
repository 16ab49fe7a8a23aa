//! One connection, opened under one deadline: name resolution, TCP, TLS and AUTH together.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;

use super::dial::Dialer;
use super::log_in::{Opened, log_in};
use super::sentinel::Sentinels;
use crate::base::active::ActiveCount;
use crate::base::clock::Clock;
use crate::base::error::{ErrorKind, Result};
use crate::base::store_error::StoreError;

/// How many attempts may be stuck at the same time, on top of the connections that a client needs;
/// for instance because a name server does not answer. Further attempts fail at once.
const MOST_STUCK: usize = 32;

/// Where the server is.
#[derive(Clone)]
enum Whereabouts {
    Fixed(Dialer),
    /// Wherever its sentinels say.
    Watched(Arc<Sentinels>),
}

/// Opens connections to one server.
pub(crate) struct Connector {
    whereabouts: Whereabouts,
    most_under_way: usize,
    clock: Clock,
    timeout: Duration,
    under_way: ActiveCount,
}

impl Connector {
    /// To the address of `dialer`, or to where `sentinels` say.
    pub(crate) fn new(
        dialer: Dialer,
        sentinels: Option<Arc<Sentinels>>,
        clock: Clock,
        timeout: Duration,
        connections: u32,
    ) -> Self {
        Self {
            whereabouts: sentinels.map_or(Whereabouts::Fixed(dialer), Whereabouts::Watched),
            most_under_way: MOST_STUCK + connections as usize,
            clock,
            timeout,
            under_way: ActiveCount::default(),
        }
    }

    /// Opens a connection by `deadline`, or within the connect timeout if that ends sooner. Also
    /// logs in and asks the server for its role.
    ///
    /// On a short-lived thread, because name resolution and unix sockets have no time limit. A
    /// thread that is too late closes what it opened.
    pub(crate) fn open(&self, deadline: Instant) -> Result<Opened, StoreError> {
        let within = self.timeout.min(self.clock.left(deadline));
        if within.is_zero() {
            return Err(no_time());
        }
        if self.under_way.count() >= self.most_under_way {
            return Err(unreachable_node("too many attempts to connect are stuck"));
        }
        let (done, opened) = bounded(1);
        let whereabouts = self.whereabouts.clone();
        // What has failed because of it can still be told in time.
        let until = Instant::now() + within * 7 / 8;
        let under_way = self.under_way.add();
        let started = thread::Builder::new().name("distlock-connect".into()).spawn(move || {
            let _under_way = under_way;
            let _ = done.send(whereabouts.log_in(until));
        });
        if let Err(error) = started {
            return Err(unreachable_node("no thread could be started to connect").because(error));
        }
        match opened.recv_timeout(within) {
            Ok(opened) => opened,
            Err(_) => {
                let late = unreachable_node("the server could not be reached");
                Err(self.at(late).because("timed out"))
            }
        }
    }

    /// Adds the server's address to the message, if it has one of its own.
    pub(crate) fn at(&self, error: StoreError) -> StoreError {
        match &self.whereabouts {
            Whereabouts::Fixed(dialer) => error.at(&dialer.address()),
            Whereabouts::Watched(_) => error,
        }
    }
}

impl Whereabouts {
    fn log_in(&self, until: Instant) -> Result<Opened, StoreError> {
        let log_in = |dialer: &Dialer| {
            let opened = dialer.open(until).and_then(|ask| log_in(ask, dialer));
            match opened {
                Ok(Opened::Refused(error)) => Ok(Opened::Refused(error.at(&dialer.address()))),
                opened => opened.map_err(|error| error.at(&dialer.address())),
            }
        };
        match self {
            Self::Fixed(dialer) => log_in(dialer),
            Self::Watched(sentinels) => {
                let found = sentinels.find(until)?;
                let opened = log_in(&sentinels.dialer_of(&found));
                if !matches!(opened, Ok(Opened::Ready { .. })) {
                    // Perhaps the primary is another server by now: the next attempt asks.
                    sentinels.doubt(&found);
                }
                opened
            }
        }
    }
}

pub(super) fn no_time() -> StoreError {
    unreachable_node("no time was left to open a connection")
}

fn unreachable_node(message: &'static str) -> StoreError {
    StoreError::not_sent(ErrorKind::Unavailable, message)
}
