//! `distlock force`: releases a lock of any holder.

use distlock::{Layout, LockOptions, Result, Side};

use crate::args::Force;
use crate::exit::{Exit, Failure, print};
use crate::look::{Kind, look};
use crate::say::say;
use crate::{server, table};

pub(crate) fn force(args: &Force) -> Result<Exit, Failure> {
    let client = server::builder(&args.server)?.build()?;
    let key = args.key.as_str();
    let seen = look(&client, key)?;
    let kind = seen.kind;
    let side = seen.state.holders.first().and_then(|holder| holder.side);
    print(&table::table(&[seen]))?;
    let why_not = match kind {
        Kind::Lock | Kind::ReadWrite | Kind::Free => None,
        Kind::Semaphore => Some("the permits of a semaphore end with their leases"),
        Kind::Redisson if args.layout == Layout::Redisson => None,
        Kind::Timestamp if args.layout == Layout::Timestamp => None,
        Kind::Redisson | Kind::Timestamp => {
            Some("a client of another library may hold it: say so by --layout")
        }
        Kind::Foreign => {
            Some("another program has written this value, and knows what to do with it")
        }
    };
    if let Some(why_not) = why_not {
        return Err(Failure::new(Exit::USAGE, format!("not released: {why_not}")));
    }
    if !args.yes {
        return Err(Failure::new(Exit::USAGE, "not released: that takes --yes"));
    }
    let was_held = match kind {
        // Only the side that was seen: the release of one side may have let the other in.
        Kind::ReadWrite => match side {
            Some(Side::Read) => client.rw_lock(key).read_lock().force_unlock()?,
            _ => client.rw_lock(key).write_lock().force_unlock()?,
        },
        _ => client.lock_with(key, LockOptions::new().layout(args.layout))?.force_unlock()?,
    };
    say(format_args!("{}", if was_held { "released" } else { "nobody held it" }));
    Ok(Exit::SUCCESS)
}
