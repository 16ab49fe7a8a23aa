//! `distlock who`: shows who holds locks, and who waits for them.

use distlock::{Error, ErrorKind};

use crate::args::Who;
use crate::exit::{Exit, Failure, print};
use crate::look::all;
use crate::{server, table};

pub(crate) fn who(args: &Who) -> Result<Exit, Failure> {
    let client = server::builder(&args.server)?.build()?;
    let seen = all(&client, &args.keys).map_err(no_look)?;
    print(&if args.json { table::json(&seen) } else { table::table(&seen) })?;
    Ok(Exit::SUCCESS)
}

/// Why there is nothing to show.
pub(crate) fn no_look(error: Error) -> Failure {
    if error.kind() == ErrorKind::Unsupported {
        return Failure::new(Exit::USAGE, "a cluster cannot be searched: name the locks");
    }
    error.into()
}
