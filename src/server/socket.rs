//! A socket whose reads and writes end by an instant, also when the process gets signals.

use std::io::{self, Read, Write};
use std::net::TcpStream;
#[cfg(unix)]
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// How much too late a read may end before its socket's timeouts are set again, which costs two
/// system calls.
const NOT_WORTH_A_CALL: Duration = Duration::from_millis(5);

/// The timeout to set so that a read ends after `left`. `None`: the one that is set will do.
pub(super) fn timeout(set: Option<Duration>, left: Duration) -> Option<Duration> {
    // Zero would mean no limit, or an error.
    let needed = || left.max(Duration::from_millis(1));
    (!set.is_some_and(|set| left <= set && left + NOT_WORTH_A_CALL >= set)).then(needed)
}

/// A socket whose reads and writes end by an instant.
pub(super) trait Socket: Read + Write {
    fn set_timeouts(&self, timeout: Duration) -> io::Result<()>;
}

impl Socket for TcpStream {
    fn set_timeouts(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))?;
        self.set_write_timeout(Some(timeout))
    }
}

#[cfg(unix)]
impl Socket for UnixStream {
    fn set_timeouts(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))?;
        self.set_write_timeout(Some(timeout))
    }
}

/// A socket that goes on reading and writing after a signal. Linux restarts no call to a socket
/// that has a timeout, even with `SA_RESTART`; nor after the process was
/// stopped and continued.
pub(super) struct Patient<S> {
    socket: S,
    /// The present value of its timeouts. Kept because setting each of them costs a system call.
    set: Option<Duration>,
    until: Instant,
    /// Whether something was read since the end was set: a reply that comes in pieces has no more
    /// time than another.
    has_read: bool,
}

impl<S: Socket> Patient<S> {
    pub(super) fn new(socket: S) -> Self {
        Self { socket, set: None, until: Instant::now(), has_read: false }
    }

    pub(super) fn bound(&mut self, until: Instant, left: Duration) -> io::Result<()> {
        (self.until, self.has_read) = (until, false);
        if let Some(timeout) = timeout(self.set, left) {
            self.socket.set_timeouts(timeout)?;
            self.set = Some(timeout);
        }
        Ok(())
    }

    /// Calls again after each signal, until the time is over.
    fn again<T>(&mut self, mut call: impl FnMut(&mut S) -> io::Result<T>) -> io::Result<T> {
        loop {
            match call(&mut self.socket) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => self.go_on()?,
                result => return result,
            }
        }
    }

    /// Shortens the timeouts to what is left.
    fn go_on(&mut self) -> io::Result<()> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            Err(io::ErrorKind::TimedOut.into())
        } else {
            self.bound(self.until, left)
        }
    }
}

impl<S: Socket> Read for Patient<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.has_read {
            self.go_on()?;
        }
        let read = self.again(|socket| socket.read(buffer));
        self.has_read = true;
        read
    }
}

impl<S: Socket> Write for Patient<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.again(|socket| socket.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each call is interrupted so often before it does anything.
    struct Interrupted(usize);

    impl Interrupted {
        fn call(&mut self, done: usize) -> io::Result<usize> {
            self.0 = self.0.checked_sub(1).map_or(Ok(0), |left| {
                self.0 = left;
                Err(io::Error::from(io::ErrorKind::Interrupted))
            })?;
            Ok(done)
        }
    }

    impl Read for Interrupted {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.call(buffer.len())
        }
    }

    impl Write for Interrupted {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.call(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Socket for Interrupted {
        fn set_timeouts(&self, timeout: Duration) -> io::Result<()> {
            assert!(!timeout.is_zero());
            Ok(())
        }
    }

    fn patient(interrupted: usize, left: Duration) -> Patient<Interrupted> {
        let mut socket = Patient::new(Interrupted(interrupted));
        socket.bound(Instant::now() + left, left).expect("timeouts");
        socket
    }

    #[test]
    fn reads_and_writes_go_on_after_a_signal() {
        const LONG: Duration = Duration::from_secs(60);
        assert_eq!(patient(3, LONG).read(&mut [0; 5]).expect("read"), 5);
        assert_eq!(patient(3, LONG).write(&[0; 7]).expect("written"), 7);
    }

    #[test]
    fn a_reply_in_pieces_has_no_more_time_than_another() {
        let mut socket = patient(0, Duration::from_millis(20));
        let begun = Instant::now();
        while socket.read(&mut [0; 1]).is_ok() {
            assert!(begun.elapsed() < Duration::from_secs(10), "it goes on");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn signals_without_an_end_do_not_outlast_the_time() {
        let read = patient(usize::MAX, Duration::from_millis(20)).read(&mut [0; 5]);
        assert_eq!(read.expect_err("too late").kind(), io::ErrorKind::TimedOut);
    }
}
