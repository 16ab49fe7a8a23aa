//! Makes a quorum from URLs, and refuses sets of nodes that would not be one.

use std::sync::Arc;

use super::Quorum;
use super::node_thread::Member;
use crate::base::clock::Clock;
use crate::base::error::{Error, Result};
use crate::base::log;
#[cfg(feature = "testing")]
use crate::lease::store::LeaseStore;
use crate::server::node::Node;
use crate::server::settings::{Among, Settings};
use crate::server::url::parse;
use crate::store::layout;
use crate::store::memory::{self, Memory};

/// The nodes of a quorum, as a program names them.
#[derive(Default)]
pub(crate) struct Nodes {
    pub(crate) urls: Vec<String>,
    /// Wraps a node's store in a store of a test; it is given the node's index.
    #[cfg(feature = "testing")]
    pub(crate) wrap: Option<WrapNode>,
}

#[cfg(feature = "testing")]
type WrapNode = Box<dyn Fn(usize, Arc<dyn LeaseStore>) -> Arc<dyn LeaseStore>>;

/// Fewer nodes survive no failure, and then one server is simpler and as safe.
const FEWEST: usize = 3;
const MOST: usize = 32;

impl Quorum {
    /// A quorum of the nodes at these URLs. Connects to none of them.
    pub(crate) fn open(nodes: &Nodes, settings: &Settings, clock: &Clock) -> Result<Self> {
        let urls = &nodes.urls;
        if !(FEWEST..=MOST).contains(&urls.len()) {
            return Err(Error::invalid("a quorum has 3 to 32 nodes"));
        }
        if settings.pool.is_some() {
            return Err(Error::invalid(
                "a quorum cannot use a pool: each node has its own connections",
            ));
        }
        if urls.len().is_multiple_of(2) {
            log::warn!(
                "a quorum of {} nodes survives no more failures than one of {}",
                urls.len(),
                urls.len() - 1
            );
        }
        let mut addresses = Vec::new();
        let mut members = Vec::new();
        for (index, url) in urls.iter().enumerate() {
            let (address, member) = member(url, urls.len(), settings, clock)?;
            if let Some(address) = address {
                if addresses.contains(&address) {
                    // One server that fails would take two nodes away.
                    return Err(Error::invalid(format!(
                        "node {} of the quorum is listed twice",
                        index + 1
                    )));
                }
                addresses.push(address);
            }
            #[cfg(feature = "testing")]
            let member = match &nodes.wrap {
                Some(wrap) => Member { leases: wrap(index, member.leases), ..member },
                None => member,
            };
            members.push(member);
        }
        Ok(Self::new(members, clock.clone(), settings.command_timeout))
    }
}

/// The node at this URL, and the address that shows whether the URL is named twice.
fn member(
    url: &str,
    nodes: usize,
    settings: &Settings,
    clock: &Clock,
) -> Result<(Option<String>, Member)> {
    if let Some(name) = memory::name_in(url).transpose()? {
        let leases = Memory::open(name, clock.clone());
        // Without a name it is a store of its own.
        let address = (!name.is_empty()).then(|| url.to_owned());
        return Ok((address, Member { leases: Arc::new(leases), server: None }));
    }
    let info = parse(url)?;
    // The database does not count: it is the same server, and fails as one.
    let address = info.addr().to_string();
    let among = Among::Quorum(u32::try_from(nodes).unwrap_or(u32::MAX));
    let settings = Settings { among, ..settings.clone() };
    let node = Arc::new(Node::new(info, None, settings, clock.clone())?);
    let leases = layout::on_node(&node);
    Ok((Some(address), Member { leases, server: Some(node) }))
}
