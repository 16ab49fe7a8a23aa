//! One thread of a Redisson client, with the same commands on the wire; written from a description
//! of what it sends.

use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use redis::Script;

use crate::support::Server;

/// A Java thread, its client and its connection.
pub struct Java {
    pub owner: String,
    thread: u64,
    connection: redis::Connection,
    /// Unlocks so far: each has a latch of its own.
    unlocks: u32,
}

const ACQUIRE: &str = "
    if redis.call('exists', KEYS[1]) == 0 or redis.call('hexists', KEYS[1], ARGV[2]) == 1 then
        redis.call('hincrby', KEYS[1], ARGV[2], 1)
        redis.call('pexpire', KEYS[1], ARGV[1])
        return nil
    end
    return redis.call('pttl', KEYS[1])";

const RELEASE: &str = "
    local latch = redis.call('get', KEYS[3])
    if latch then return tonumber(latch) end
    if redis.call('hexists', KEYS[1], ARGV[3]) == 0 then return nil end
    if redis.call('hincrby', KEYS[1], ARGV[3], -1) > 0 then
        redis.call('pexpire', KEYS[1], ARGV[2])
        redis.call('set', KEYS[3], 0, 'px', ARGV[5])
        return 0
    end
    redis.call('del', KEYS[1])
    redis.call(ARGV[4], KEYS[2], ARGV[1])
    redis.call('set', KEYS[3], 1, 'px', ARGV[5])
    return 1";

impl Java {
    pub fn new(server: &Server, thread: u64) -> Java {
        Java {
            owner: format!("5b0f9f9c-7a3c-4c4e-8f4d-{thread:012x}:{thread}"),
            thread,
            connection: server.connection(),
            unlocks: 0,
        }
    }

    /// `None`: acquired. Otherwise the rest of the other lease.
    pub fn acquire(&mut self, name: &str, lease_ms: u64) -> Option<i64> {
        Script::new(ACQUIRE)
            .key(name)
            .arg(lease_ms)
            .arg(&self.owner)
            .invoke(&mut self.connection)
            .unwrap()
    }

    /// `None`: not its own. `Some(0)`: still held. `Some(1)`: released.
    pub fn release(&mut self, name: &str, lease_ms: u64) -> Option<i64> {
        self.unlocks += 1;
        let latch =
            format!("redisson_unlock_latch:{{{name}}}:{:024x}{:08x}", self.thread, self.unlocks);
        let script = Script::new(RELEASE);
        let mut script = script.key(name);
        script.key(format!("redisson_lock__channel:{{{name}}}")).key(&latch);
        script.arg("0").arg(lease_ms).arg(&self.owner).arg("PUBLISH").arg(13_500);
        let result = script.invoke(&mut self.connection).unwrap();
        redis::cmd("DEL").arg(&latch).exec(&mut self.connection).unwrap();
        result
    }
}

/// A subscription as Redisson has it.
pub struct Listener {
    heard: Receiver<(String, String)>,
}

impl Listener {
    /// Returns once the subscription is confirmed.
    pub fn at(server: &Server, channel: &str) -> Listener {
        let (tell, heard) = mpsc::channel();
        let (ready, stands) = mpsc::channel();
        let (mut connection, channel) = (server.connection(), channel.to_owned());
        thread::spawn(move || {
            let mut subscription = connection.as_pubsub();
            subscription.subscribe(&channel).unwrap();
            subscription.set_read_timeout(None).unwrap();
            ready.send(()).unwrap();
            // Until the server is gone, or the receiver is dropped.
            while let Ok(message) = subscription.get_message() {
                if tell
                    .send((message.get_channel_name().to_owned(), message.get_payload().unwrap()))
                    .is_err()
                {
                    break;
                }
            }
        });
        stands.recv().unwrap();
        Listener { heard }
    }

    /// The next channel and message, if there is one within that time.
    pub fn next(&self, within: Duration) -> Option<(String, String)> {
        self.heard.recv_timeout(within).ok()
    }
}
