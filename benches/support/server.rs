//! Private servers, observed from outside: what they have read, and what they cost.

use super::it::Server;
use super::placement::Place;

/// Starts a server where the bench wants it.
pub fn start(place: Place) -> Server {
    place.of_server(|| Server::builder().arg("maxclients", "10000").start())
}

/// Asks servers how busy they were, over a connection to each that stays open.
pub struct Side {
    connections: Vec<redis::Connection>,
    /// How often it has asked for the counters.
    asked: u64,
}

/// The counters of all servers at one moment, summed.
#[derive(Clone, Copy)]
pub struct Counters {
    /// How often they have read from a client. If a client waits for each answer, a server reads
    /// once per command. Commands inside scripts do not count here; in the server's own
    /// commandstats they do.
    pub reads: u64,
    /// CPU time in microseconds.
    pub cpu_us: f64,
}

impl Side {
    pub fn new(server: &Server) -> Self {
        Self::of([server])
    }

    pub fn of<'a>(servers: impl IntoIterator<Item = &'a Server>) -> Self {
        Self { connections: servers.into_iter().map(Server::connection).collect(), asked: 0 }
    }

    /// The counters, without the reads that this costs.
    pub fn counters(&mut self) -> Counters {
        self.asked += 1;
        let mut sum = Counters { reads: 0, cpu_us: 0.0 };
        for connection in &mut self.connections {
            let info: String =
                redis::cmd("INFO").arg("stats").arg("cpu").query(connection).unwrap();
            let field = |name: &str| {
                let value =
                    |line: &str| Some(line.strip_prefix(name)?.strip_prefix(':')?.parse::<f64>());
                info.lines().find_map(value).unwrap().unwrap()
            };
            sum.reads += field("total_reads_processed") as u64 - self.asked;
            sum.cpu_us += (field("used_cpu_sys") + field("used_cpu_user")) * 1e6;
        }
        sum
    }

    /// How many connections there are, without those of this.
    pub fn connections(&mut self) -> usize {
        let count = |connection: &mut redis::Connection| {
            let list: String = redis::cmd("CLIENT").arg("LIST").query(connection).unwrap();
            list.lines().count() - 1
        };
        self.connections.iter_mut().map(count).sum()
    }

    /// At the first server.
    pub fn delete(&mut self, key: &str) {
        redis::cmd("DEL").arg(key).exec(&mut self.connections[0]).unwrap();
    }

    /// At the first server, writes a lock of another holder, for far longer than any bench takes.
    pub fn hold(&mut self, key: &str) {
        redis::cmd("SET")
            .arg(key)
            .arg("somebody-else")
            .arg("PX")
            .arg(3_600_000)
            .exec(&mut self.connections[0])
            .unwrap();
    }
}

impl Counters {
    /// What the servers read from clients between two calls of `counters`.
    pub fn reads_since(&self, before: &Self) -> u64 {
        self.reads - before.reads
    }
}
