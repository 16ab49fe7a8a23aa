//! `Client`: connects, and hands out locks, semaphores and rate limiters.

mod builder;
mod by_name;
mod open;
mod stats;
#[cfg(feature = "testing")]
mod testing;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Clock;
use crate::base::error::Result;
use crate::base::options::LockOptions;
use crate::server::sentinel::service::Service;
use crate::server::settings::Settings;
use crate::store::{Deployment, Nodes};
pub use builder::ClientBuilder;
use open::Open;
pub use stats::{Grants, Stats};

/// Hands out locks and more on one server, on a Redis Cluster, on a majority of several servers, or
/// on the embedded store.
///
/// Clones are the same client. Dropping the last clone, and the last lock, semaphore, claim, permit
/// and rate limiter made by it, closes the client, as [`close`](Client::close) does, within one
/// command timeout. A client does not survive a fork: in the child, every call that would talk to
/// the server or wait for another thread fails with `Unsupported`, and the child must make its own
/// client, which may block for ever if another thread of the parent was just opening or closing
/// one. Calls that need neither (`is_held`; a `lock` or `unlock` that only counts holds) do in the
/// child what they would do in its parent.
///
/// | URL | |
/// |---|---|
/// | `redis://[user:password@]host[:port][/db]` | one server over TCP; `?db=…` is the same as `/db` |
/// | `rediss://…` | the same over TLS, with the feature `tls` |
/// | `redis+unix:///path[?db=…&user=…&pass=…]` | one server over a unix socket |
/// | `redis+sentinel://[user:password@]host[:port],host…/service[/db]` | the primary that these sentinels name; the user is the primary's |
/// | `rediss+sentinel://…` | the same, both over TLS |
/// | `redis+cluster://[user:password@]host[:port],host…` | the Redis Cluster to which these nodes belong |
/// | `rediss+cluster://…` | the same over TLS |
/// | `memory://` | this client's own store, in this process |
/// | `memory://name` | a store shared in this process by that name |
///
/// Anything else in a URL is refused. `valkey://`, `valkeys://` and `unix://` are other names for
/// the first three schemes. In a user or a password, `: / ? # @ %` are percent-encoded.
#[derive(Clone)]
pub struct Client {
    open: Arc<Open>,
}

impl Client {
    /// A client with every setting at its default. Does not connect: the first call that needs the
    /// server does.
    ///
    /// # Errors
    /// `InvalidInput` for a URL that cannot be understood, `Unsupported` for a URL that this build
    /// cannot use.
    pub fn open(url: &str) -> Result<Self> {
        Self::builder(url).build()
    }

    /// A client with settings of its own.
    #[must_use]
    pub fn builder(url: &str) -> ClientBuilder {
        ClientBuilder {
            deployment: Deployment::Url(url.to_owned()),
            settings: Settings::default(),
            max_outage: Duration::from_secs(30),
            slow_wait: Duration::from_secs(10),
            name: None,
            prefix: String::new(),
            options: LockOptions::new(),
            listener: None,
            clock: Clock::default(),
            #[cfg(feature = "testing")]
            wrap: None,
        }
    }

    /// A client whose locks are leases on a majority of independent Redis servers (Redlock), with
    /// every setting at its default. Does not connect.
    ///
    /// A lock is held once more than half of the nodes have granted it while the lease is still
    /// valid. All nodes are asked at once, so a call takes as long as the slowest node of the
    /// fastest majority; nodes that are slow or down delay nobody while a majority is up. They have
    /// a fifth of the lease to grant a lock, at least 50 ms, and at most half of the lease or one
    /// command timeout. Guards, reentrancy, renewal, `on_lost` and hand-offs between this process's
    /// threads work as with any other lock. The Redis documentation has a [page about the
    /// algorithm](https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/).
    ///
    /// ```
    /// # fn main() -> distlock::Result<()> {
    /// use distlock::Client;
    ///
    /// // In production: redis:// URLs of servers that share neither a host nor a replication link.
    /// let client = Client::redlock(["memory://a", "memory://b", "memory://c"])?;
    /// let guard = client.lock("orders:42").guard()?;
    /// assert!(guard.is_valid());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A node must be a separate master that keeps its data over a restart. There is no queue:
    /// waiters ask again after a random pause, and a
    /// [`try_lock(Duration::ZERO)`](crate::Lock::try_lock) may be refused although nobody holds the
    /// lock. There are no fences, so one server with fences often protects better.
    /// [Guarantees](crate::guide::guarantees) says, under *Redlock*, what is promised and what is
    /// not.
    ///
    /// Fences, confirmations, [`execute`](Client::execute), rate limiters, conditions, layouts
    /// other than the plain one and [`LockOptions::owner`] are `Unsupported`.
    ///
    /// # Errors
    /// `InvalidInput` for fewer than 3 or more than 32 nodes, for a server that is listed twice
    /// (same host and port, with any database), and for URLs that cannot be understood;
    /// `Unsupported` for URLs that this build cannot use. An even number of nodes is logged as a
    /// warning: it needs one more node for a majority and survives no more failures.
    pub fn redlock(urls: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self> {
        Self::redlock_builder(urls).build()
    }

    /// As [`redlock`](Client::redlock), with settings of its own. They apply to each node.
    ///
    /// Each node has one connection and one thread for questions, and one of each for renewal:
    /// [`ClientBuilder::pool_size`] has no effect, and [`ClientBuilder::pool`] is refused.
    #[must_use]
    pub fn redlock_builder(urls: impl IntoIterator<Item = impl AsRef<str>>) -> ClientBuilder {
        let urls = urls.into_iter().map(|url| url.as_ref().to_owned()).collect();
        let mut builder = Self::builder("");
        builder.deployment = Deployment::Quorum(Nodes { urls, ..Nodes::default() });
        builder
    }

    /// A client of the primary that sentinels name for this service, with every setting at its
    /// default. Does not connect.
    ///
    /// The URLs are those of sentinels, `redis://[user:password@]host[:port]`; with `rediss://`,
    /// the primary is reached over TLS, too. Name all sentinels, each once: others are not asked,
    /// and a majority counts the named ones only. The port is 26379 unless the URL has one. The
    /// protocol is described in the [Redis documentation for Sentinel
    /// clients](https://redis.io/docs/latest/develop/reference/sentinel-clients/).
    ///
    /// ```no_run
    /// # fn main() -> distlock::Result<()> {
    /// use distlock::{Client, LockOptions};
    ///
    /// let client = Client::sentinel(["redis://s1", "redis://s2", "redis://s3"], "mymaster")?;
    /// // There is one replica. As all replicas have confirmed it, no failover loses the lock.
    /// let lock = client.lock_with("orders:42", LockOptions::new().replicas(1))?;
    /// lock.with(|_| println!("locked"))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Everything works as on one server, and costs as many round trips. When the sentinels name
    /// another primary, all connections to the old one are given up, and waiters, renewals and
    /// calls go on at the new one. Calls during the failover wait as in an outage, for up to
    /// [`max_outage`](ClientBuilder::max_outage). Locks that the new primary had not received are
    /// lost, unless [`replicas`](crate::LockOptions::replicas) was set:
    /// [guarantees](crate::guide::guarantees) has a table of what survives which failure.
    ///
    /// A sentinel that hangs delays nobody, and if most of them hang, a new connection takes up to
    /// half a second longer. A sentinel that is cut off leads no client back to an old primary, as
    /// long as most of the named ones are not: one name for several sentinels counts as one.
    /// A client that can reach no sentinel stays at the primary that it knows, unless it has heard
    /// that it moved. All sentinels
    /// together have half of the time that opening a connection may take.
    ///
    /// # Errors
    /// `InvalidInput` for no sentinel, for URLs that cannot be understood, and if only some of them
    /// use TLS; `Unsupported` for URLs that this build cannot use.
    pub fn sentinel(
        sentinels: impl IntoIterator<Item = impl AsRef<str>>,
        service: &str,
    ) -> Result<Self> {
        Self::sentinel_builder(sentinels, service).build()
    }

    /// As [`sentinel`](Client::sentinel), with settings of its own.
    #[must_use]
    pub fn sentinel_builder(
        sentinels: impl IntoIterator<Item = impl AsRef<str>>,
        service: &str,
    ) -> ClientBuilder {
        let mut builder = Self::builder("");
        builder.deployment = Deployment::Sentinel(Service::new(service, sentinels));
        builder
    }

    /// A client whose locks are spread over the nodes of a Redis Cluster, with every setting at its
    /// default. Does not connect.
    ///
    /// The URLs are those of some nodes, by which the others are found:
    /// `redis://[user:password@]host[:port]`, or `rediss://` for all. The user is the same at every
    /// node. Each lock lives at the node that owns the slot of its name, and costs as many round
    /// trips as on one server; one or two more when the slot has moved, and a few more for the
    /// first lock of all. [In practice](crate::guide::practice#a-redis-cluster) says which settings
    /// the servers need, what a failover costs, and how many connections there are. Redis's
    /// documentation has the
    /// [specification](https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/).
    ///
    /// A node that is down fails only the calls for its own locks, unless
    /// `cluster-require-full-coverage` is `yes`, as it is by default: then all nodes refuse. A
    /// thread for each node extends the leases that were granted there. After a failover or a move
    /// of slots, or when nodes have come or gone, one thread may extend leases at two nodes. While
    /// one of these is silent, each extend there may delay those at the other: most often by less
    /// than a sixth of its lease, and never by more than two command timeouts.
    ///
    /// ```no_run
    /// # fn main() -> distlock::Result<()> {
    /// use distlock::{Client, LockOptions};
    ///
    /// let client = Client::cluster(["redis://n1", "redis://n2", "redis://n3"])?;
    /// // Each primary has one replica. As it has confirmed the lock, no single failover loses it.
    /// let lock = client.lock_with("orders:42", LockOptions::new().replicas(1))?;
    /// lock.with(|_| println!("locked"))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Layouts, the queue, conditions, fences, confirmations by replicas and rate limiters are as
    /// on one server. Wake-ups come over one more connection to each node where somebody waits.
    /// Before Redis 7 a node has no channels of its own: there waiters poll, with the pauses of
    /// [`Retry`](crate::Retry), a release lets the first in that asks, and waiters in a condition
    /// ask every 4 to 6 s. [`execute`](Client::execute) is `Unsupported`.
    ///
    /// While a slot moves to another node, locks in it are extended and released, and those without
    /// a fence acquired. The queue stands still: waiters poll, and the first that asks is let in.
    /// What needs several keys fails with `Unavailable` until the slot has moved: acquiring with a
    /// fence, conditions, `force_unlock`, `inspect`, and the timestamp layout. `lock` waits for
    /// that as in an outage.
    ///
    /// A name with a `}` needs a hash tag, as in `{orders}:42`. Others, such as `a}b` and `{}x`,
    /// are `InvalidInput` at the first call that locks: their companions would be in another slot.
    ///
    /// # Errors
    /// `InvalidInput` for no node, for URLs that cannot be understood, and if only some of them use
    /// TLS or name the same user; `Unsupported` for a database other than 0, and for URLs that this
    /// build cannot use.
    pub fn cluster(urls: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self> {
        Self::cluster_builder(urls).build()
    }

    /// As [`cluster`](Client::cluster), with settings of its own.
    /// [`ClientBuilder::pool_size`] is that of each node, and [`ClientBuilder::pool`] is refused.
    #[must_use]
    pub fn cluster_builder(urls: impl IntoIterator<Item = impl AsRef<str>>) -> ClientBuilder {
        let urls = urls.into_iter().map(|url| url.as_ref().to_owned()).collect();
        let mut builder = Self::builder("");
        builder.deployment = Deployment::Cluster(urls);
        builder
    }

    /// The name of the client: that of [`ClientBuilder::name`], or one that tells its host and its
    /// process.
    #[must_use]
    pub fn name(&self) -> &str {
        self.open.context.tokens.client_name()
    }

    /// Checks that the server answers; connects and authenticates if needed. One round trip. With
    /// [`redlock`](Client::redlock), checks a majority of the servers; with
    /// [`cluster`](Client::cluster), one of the nodes.
    ///
    /// # Errors
    /// `Unavailable` without an answer within one command timeout, `Denied` for a wrong password.
    pub fn ping(&self) -> Result<()> {
        self.open.context.check_open()?;
        self.open
            .backend
            .ping(self.open.context.command_deadline())
            .map_err(|error| error.into_error())
    }

    /// Runs `work`, with commands of your own, over a pooled connection. If the connection turns
    /// out to be dropped, `work` runs once more, from its start.
    ///
    /// So it must be safe to run `work` twice. `work` must undo its changes to the connection
    /// itself (a transaction left open, a subscription, another database). If it leaves replies
    /// unread, the next lock command notices that and closes the connection; the next `work` does
    /// not.
    ///
    /// The connection is in use until `work` ends: while [`pool_size`](ClientBuilder::pool_size)
    /// calls are under way, locks wait for a connection. So `work` should be short, and not lock.
    ///
    /// Commands are built by `redis::cmd`, `redis::Cmd::get` and the like, `redis::pipe` or
    /// `redis::Script`, and sent by their `query` or `invoke`. The methods of `redis::Commands` are
    /// not available: that trait needs the connection's type, and `work` does not know whose pool
    /// the connection comes from.
    ///
    /// ```no_run
    /// # fn main() -> distlock::Result<()> {
    /// let client = distlock::Client::open("redis://127.0.0.1/")?;
    /// let visits: u64 = client.execute(|conn| redis::cmd("INCR").arg("visits").query(conn))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Unavailable` if there was no connection or no answer: the commands may have run. `Server`,
    /// `Denied`, `WrongType`: what the server said. `Unsupported` on `memory://`, which knows no
    /// commands, and on a cluster and a quorum, which have several servers.
    pub fn execute<T>(
        &self,
        mut work: impl FnMut(&mut dyn redis::ConnectionLike) -> redis::RedisResult<T>,
    ) -> Result<T> {
        self.open.context.check_open()?;
        self.open
            .backend
            .execute(self.open.context.command_deadline(), &mut work)
            .map_err(|error| error.into_error())
    }

    /// Releases every lock that this client still holds, withdraws what may have been left behind,
    /// and ends every thread of the client.
    ///
    /// Threads that wait for a lock, and all calls from now on, fail with `Closed`. Holders
    /// are told that their leases are lost ([`LostReason::Closed`](crate::LostReason::Closed)).
    /// While the server does not answer it is asked again, until the end of `timeout`. The call
    /// ends by then. A second call returns the result of the first, or `Unknown` while the first is
    /// under way.
    ///
    /// `Ok`: the server has confirmed that this client holds no lock. Only where an attempt to lock
    /// had no answer before, a copy of it that something on the way has kept may arrive later. It
    /// then takes the lock for one lease. An open client asks again for ten seconds to prevent
    /// that; a closed one cannot.
    ///
    /// # Errors
    /// `Unknown` if `timeout` ended first, with the number of locks whose release was not
    /// confirmed: they may be held on the server until their leases run out. Threads end a little
    /// later.
    pub fn close(&self, timeout: Duration) -> Result<()> {
        self.open.close(timeout)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("backend", &self.open.backend)
            .field("name", &self.name())
            .field("key_prefix", &self.open.prefix)
            .finish_non_exhaustive()
    }
}
