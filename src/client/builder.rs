//! `ClientBuilder`: the settings of a client.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{Client, Open};
use crate::base::clock::Clock;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::key::LONGEST_KEY;
use crate::base::options::LockOptions;
use crate::base::subject::Subject;
use crate::lease::context::Context;
use crate::lease::counters::Counters;
use crate::lease::durations::Timeouts;
use crate::lease::events::{Event, Events, Listener};
#[cfg(feature = "testing")]
use crate::lease::store::LeaseStore;
use crate::lease::token::Tokens;
use crate::local::Names;
use crate::server::settings::Settings;
use crate::store::{Backend, Deployment};

/// The settings of a [`Client`]. Start from [`Client::builder`], which has every default.
pub struct ClientBuilder {
    pub(super) deployment: Deployment,
    pub(super) settings: Settings,
    pub(super) max_outage: Duration,
    pub(super) slow_wait: Duration,
    pub(super) prefix: String,
    pub(super) name: Option<String>,
    pub(super) options: LockOptions,
    pub(super) listener: Option<Box<dyn Listener>>,
    pub(super) clock: Clock,
    #[cfg(feature = "testing")]
    pub(super) wrap: Option<WrapStore>,
}

#[cfg(feature = "testing")]
pub(super) type WrapStore = Box<dyn Fn(Arc<dyn LeaseStore>) -> Arc<dyn LeaseStore>>;

impl ClientBuilder {
    /// How many connections the pool may have. Default 8; 1 to 1024. Renewal and wake-ups have
    /// one extra connection each. Locks that need confirmations have as many again, see
    /// [`replicas`](crate::LockOptions::replicas). In a cluster each node has so many.
    ///
    /// Connections are opened when they are needed, and closed after 20 to 50 s without use.
    #[must_use]
    pub fn pool_size(mut self, connections: u32) -> Self {
        self.settings.pool_size = connections;
        self
    }

    /// How long one command may take, from the wait for a pooled connection to the end of its
    /// reply. Default 2 s; at least 1 ms, at most 1 h.
    ///
    /// Linux may end the wait for a reply late, by at most an eighth of the timeout: it rounds
    /// socket timeouts up. Over a connection of the program's own [`pool`](Self::pool), a reply
    /// that arrives in pieces, with pauses in between, has the rest of the time for each piece.
    #[must_use]
    pub fn command_timeout(mut self, timeout: Duration) -> Self {
        self.settings.command_timeout = timeout;
        self
    }

    /// How long opening a connection may take: name resolution, TCP, TLS and AUTH together. Default
    /// 2 s; at least 1 ms, at most 1 h. A command that needs a new connection has no longer than
    /// its own timeout for both the connection and the reply.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.settings.connect_timeout = timeout;
        self
    }

    /// How long `lock()` waits through an outage before it fails with `Unavailable`. Default 30 s.
    #[must_use]
    pub fn max_outage(mut self, outage: Duration) -> Self {
        self.max_outage = outage;
        self
    }

    /// After how long a wait for a lock, or for permits, says in the log at `warn` who holds it and
    /// how many wait before. Default 10 s; [`Duration::MAX`]: never.
    ///
    /// A call that asks rarely, because of a long [`retry`](crate::LockOptions::retry), says so
    /// when it asks next. As long as calls of a client wait for a lock, one of them says so again,
    /// after a pause of six times this time, and of a second at least. Each side of a read-write
    /// lock has a pause of its own, and a lock begins without one once the program has dropped all
    /// of its handles. The question who holds the lock costs one round trip of a thread that waits
    /// anyway, and is not asked if nothing in the program logs at `warn`.
    #[must_use]
    pub fn slow_wait(mut self, wait: Duration) -> Self {
        self.slow_wait = wait;
        self
    }

    /// The text before each lock's name in its key, such as `lock:`; prefix and name have at most
    /// 1,024 bytes together. Default: none, the name is the key.
    #[must_use]
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// The client's name. It stands at the end of its tokens, so `GET` of a plain lock's key shows
    /// who holds it, and [`inspect`](crate::RedisLock::inspect) tells it. It is not the name of a
    /// connection, as `CLIENT LIST` shows it.
    ///
    /// 1 to 64 letters and digits of ASCII, `.`, `_` and `-`; it need not be unique. Any other is
    /// `InvalidInput` of [`build`](Self::build). Default: the host's name (up to 40 characters;
    /// from Linux, or the environment's `HOSTNAME` or `COMPUTERNAME`, or else `host`), the number
    /// of the process, and 8 random hexadecimal digits.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The options of what [`Client::lock`], [`Client::rw_lock`] and [`Client::semaphore`] make.
    #[must_use]
    pub fn lock_options(mut self, options: LockOptions) -> Self {
        self.options = options;
        self
    }

    /// Tells `listener` what happens to the locks of the client: each [`Event`], on a thread of its
    /// own. While many happen, the thread collects them for 10 ms. A closure will do.
    ///
    /// The events come in the order in which they happen. Of two that happen at the same moment on
    /// different threads, such as a loss and an unlock, either may come first.
    ///
    /// A listener that is slow delays no lock. If 4,096 events wait for it, further ones are
    /// dropped; [`Stats::dropped_events`](crate::Stats::dropped_events) counts them. A listener
    /// that panics is logged once, and hears the next event.
    ///
    /// [`Client::close`], and the drop of the last handle, let it hear what has happened until
    /// then, within their time. It is dropped on its thread. It must not own a lock or the client:
    /// as long as it exists, so would the client. If it locks by the same client, it hears of that,
    /// too.
    ///
    /// ```
    /// # fn main() -> distlock::Result<()> {
    /// use distlock::{Client, Event};
    ///
    /// let listener = |event: Event| match event {
    ///     Event::Granted { subject, how, waited, .. } => println!("{subject}: {how}, {waited:?}"),
    ///     Event::Lost { subject, reason, .. } => eprintln!("{subject}: lost, {reason}"),
    ///     _ => {}
    /// };
    /// let client = Client::builder("memory://").listener(listener).build()?;
    /// client.lock("orders:42").with(|_| ())?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn listener(mut self, listener: impl Listener) -> Self {
        self.listener = Some(Box::new(listener));
        self
    }

    /// Uses a pool that the program already has, instead of a pool of the client's own.
    ///
    /// The URL is still needed: renewal has a connection of its own, so that an exhausted pool
    /// delays no extend. The pool keeps its own settings. With r2d2's default `test_on_check_out`
    /// each check-out costs one more round trip. Over a connection without a read timeout, r2d2
    /// waits for that reply without limit: a call may then last as long as the server is silent.
    /// Over connections that have one, as those have that the client has used, it waits for each
    /// idle connection in turn: while the server is silent, a call may take one command timeout for
    /// each of them. Turn the test off, and every call keeps its own limit. The client gives the
    /// connections its command timeout. It replaces a connection that timed out or failed with a
    /// closed one, which the pool then discards. The pool's database must be that of the URL:
    /// renewal looks there.
    #[must_use]
    pub fn pool(mut self, pool: r2d2::Pool<redis::Client>) -> Self {
        self.settings.pool = Some(pool);
        self
    }

    /// The user and the password for the primary, with [`Client::sentinel_builder`] and
    /// `redis+sentinel://` URLs. An empty user is Redis's default user.
    #[must_use]
    pub fn credentials(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.settings.credentials = Some((user.into(), password.into()));
        self
    }

    /// The database at the primary, with [`Client::sentinel_builder`] and `redis+sentinel://` URLs.
    /// Default 0.
    #[must_use]
    pub fn database(mut self, number: u32) -> Self {
        self.settings.database = Some(number);
        self
    }

    /// The user and the password for the sentinels themselves. Default: those in the first
    /// sentinel's URL.
    #[must_use]
    pub fn sentinel_credentials(
        mut self,
        user: impl Into<String>,
        password: impl Into<String>,
    ) -> Self {
        self.settings.sentinel_credentials = Some((user.into(), password.into()));
        self
    }

    /// The certificate authorities to trust for `rediss://`, in PEM, instead of the system's.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.settings.root_certificates = Some(pem.into());
        self
    }

    /// Makes the client. Does not connect.
    ///
    /// # Errors
    /// `InvalidInput` for a URL that cannot be understood or settings that cannot work,
    /// `Unsupported` for a URL that this build cannot use, `Unavailable` if no thread could be
    /// started for the listener.
    pub fn build(self) -> Result<Client> {
        self.settings.check()?;
        self.options.check()?;
        if self.prefix.len() >= LONGEST_KEY {
            return Err(Error::invalid("a key prefix must have at most 1023 bytes"));
        }
        let timeouts = Timeouts {
            command_timeout: self.settings.command_timeout,
            max_outage: self.max_outage,
            slow_wait: self.slow_wait,
        };
        let tokens = Tokens::new(self.name)?;
        let events = self.listener.map(Events::to).transpose().map_err(|error| {
            Error::new(ErrorKind::Unavailable, "no thread could be started for the listener")
                .because(error)
        })?;
        let counters = Arc::new(Counters { events, ..Counters::default() });
        let telling = Arc::clone(&counters);
        self.settings.counters.when_down(Box::new(move |server, is_down| {
            let server = Arc::clone(server);
            telling.tell(|| match is_down {
                true => Event::Unreachable { server },
                false => Event::Reachable { server },
            });
        }));
        let context = Context::new(self.clock.clone(), timeouts, tokens, counters);
        let command_timeout = self.settings.command_timeout;
        let counters = Arc::clone(&self.settings.counters);
        #[allow(unused_mut, reason = "wrapped only for tests")]
        let mut backend = Backend::new(
            &self.deployment,
            self.settings,
            self.clock,
            &context.tokens,
            &context.cleaner,
        )?;
        #[cfg(feature = "testing")]
        if let Some(wrap) = self.wrap {
            backend.wrap(&wrap);
        }
        let store = backend.leases(&self.options)?;
        Ok(Client {
            open: Arc::new(Open {
                backend: Arc::new(backend),
                store,
                context: Arc::new(context),
                counters,
                locks: Names::of(Subject::lock),
                semaphores: Names::of(Subject::semaphore),
                read_sides: Names::of(Subject::read_lock),
                write_sides: Names::of(Subject::write_lock),
                prefix: self.prefix,
                options: Arc::new(self.options),
                command_timeout,
                closed: Mutex::default(),
            }),
        })
    }
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder")
            .field("name", &self.name)
            .field("key_prefix", &self.prefix)
            .field("lock_options", &self.options)
            .finish_non_exhaustive()
    }
}
