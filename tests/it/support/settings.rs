//! How a test server is started: its builder, and the resulting command line.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};

use super::{Server, ports};

/// Settings of a [`Server`] that will be started.
#[derive(Default)]
pub struct ServerBuilder {
    args: Vec<(String, String)>,
    pub(super) password: Option<String>,
    pub(super) unix_socket: bool,
    pub(super) tls: Option<[PathBuf; 3]>,
    append_only: bool,
}

impl ServerBuilder {
    /// Adds a line of configuration, as in redis.conf: `.arg("maxmemory", "10mb")`. Several words
    /// are several values.
    pub fn arg(mut self, key: &str, value: &str) -> ServerBuilder {
        self.args.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Asks every client for this password (letters and digits only: it is put into URLs as it is).
    pub fn password(mut self, password: &str) -> ServerBuilder {
        self.password = Some(password.to_owned());
        self
    }

    /// Listens on a unix socket too; see [`Server::unix_url`].
    pub fn unix_socket(mut self) -> ServerBuilder {
        self.unix_socket = true;
        self
    }

    /// Listens on a TLS port too (PEM files); see [`Server::tls_url`].
    pub fn tls(mut self, cert: &Path, key: &Path, ca: &Path) -> ServerBuilder {
        self.tls = Some([cert.to_owned(), key.to_owned(), ca.to_owned()]);
        self
    }

    /// Writes every change to disk before answering: data survives [`Server::kill`].
    pub fn append_only(mut self) -> ServerBuilder {
        self.append_only = true;
        self
    }

    /// A port that is free. A node of a cluster also listens 10,000 ports above it, where the
    /// system's own ports begin: those that are in use may be many in a row.
    pub(super) fn free_port(&self) -> u16 {
        const BUS: u16 = 10_000;
        let is_node = self.args.iter().any(|(key, _)| key == "cluster-enabled");
        loop {
            let port = ports::free();
            if !is_node || TcpListener::bind((Ipv4Addr::LOCALHOST, port + BUS)).is_ok() {
                return port;
            }
        }
    }

    /// Starts the server and returns once it answers.
    pub fn start(self) -> Server {
        Server::start_with(self)
    }

    /// The command line of a server with these settings, these ports (plain, TLS) and this
    /// directory.
    pub(super) fn command_line(&self, port: u16, tls_port: u16, dir: &Path) -> Vec<String> {
        let mut args: Vec<String> = Vec::new();
        let mut set = |key: &str, values: &[&str]| {
            args.push(format!("--{key}"));
            args.extend(values.iter().map(|value| (*value).to_owned()));
        };
        set("bind", &["127.0.0.1"]);
        set("port", &[&port.to_string()]);
        set("dir", &[&dir.display().to_string()]);
        set("save", &[""]);
        if self.append_only {
            set("appendonly", &["yes"]);
            set("appendfsync", &["always"]);
        }
        if self.unix_socket {
            set("unixsocket", &[&socket_path(dir).display().to_string()]);
        }
        if let Some(password) = &self.password {
            set("requirepass", &[password]);
        }
        if let Some(files) = &self.tls {
            set("tls-port", &[&tls_port.to_string()]);
            for (key, file) in
                ["tls-cert-file", "tls-key-file", "tls-ca-cert-file"].into_iter().zip(files)
            {
                set(key, &[&file.display().to_string()]);
            }
            set("tls-auth-clients", &["no"]);
        }
        for (key, value) in &self.args {
            let words: Vec<&str> = value.split_whitespace().collect();
            set(key, if words.is_empty() { &[""] } else { &words });
        }
        args
    }
}

/// Where a server listens that was asked for a unix socket.
pub(super) fn socket_path(dir: &Path) -> PathBuf {
    dir.join("redis.sock")
}
