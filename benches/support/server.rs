//! A private server, observed from outside: what it has read, and what it costs.

use super::it::Server;
use super::placement::Place;

/// Starts a server where the bench wants it.
pub fn start(place: Place) -> Server {
    place.of_server(|| Server::builder().arg("maxclients", "10000").start())
}

/// Asks the server how busy it was, over one connection that stays open.
pub struct Side {
    connection: redis::Connection,
}

/// The server's counters at one moment.
#[derive(Clone, Copy)]
pub struct Counters {
    /// How often it has read from a client. If a client waits for each answer, the server reads
    /// once per command. Commands inside scripts do not count here; in the server's own
    /// commandstats they do.
    pub reads: u64,
    /// CPU time in microseconds.
    pub cpu_us: f64,
}

impl Side {
    pub fn new(server: &Server) -> Self {
        Self { connection: server.connection() }
    }

    /// The counters. Each call is itself one read, which `since` leaves out.
    pub fn counters(&mut self) -> Counters {
        let info: String =
            redis::cmd("INFO").arg("stats").arg("cpu").query(&mut self.connection).unwrap();
        let field = |name: &str| {
            info.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
                .unwrap()
                .to_owned()
        };
        let seconds = |name: &str| field(name).parse::<f64>().unwrap();
        Counters {
            reads: field("total_reads_processed").parse().unwrap(),
            cpu_us: (seconds("used_cpu_sys") + seconds("used_cpu_user")) * 1e6,
        }
    }

    /// How many connections there are, without this one.
    pub fn connections(&mut self) -> usize {
        let list: String = redis::cmd("CLIENT").arg("LIST").query(&mut self.connection).unwrap();
        list.lines().count() - 1
    }

    pub fn delete(&mut self, key: &str) {
        redis::cmd("DEL").arg(key).exec(&mut self.connection).unwrap();
    }

    /// Writes a lock of another holder, for far longer than any bench takes.
    pub fn hold(&mut self, key: &str) {
        redis::cmd("SET")
            .arg(key)
            .arg("somebody-else")
            .arg("PX")
            .arg(3_600_000)
            .exec(&mut self.connection)
            .unwrap();
    }
}

impl Counters {
    /// What the server read from clients between two calls of `counters`.
    pub fn reads_since(&self, before: &Self) -> u64 {
        (self.reads - before.reads).saturating_sub(1)
    }
}
