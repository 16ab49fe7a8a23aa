//! The server that the arguments name.

use distlock::{Client, ClientBuilder, Result};

use crate::args::Server;
use crate::exit::{Exit, Failure};

/// A client of it, to be built.
pub(crate) fn builder(server: &Server) -> Result<ClientBuilder, Failure> {
    let url = &server.url;
    if url.starts_with("memory:") {
        let why = "memory:// is inside one process: no other has a lock there";
        return Err(Failure::new(Exit::USAGE, why));
    }
    Ok(Client::builder(url))
}
