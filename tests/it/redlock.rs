//! Redlock: what a majority of nodes makes of a lock, whatever the others do (R17).

mod again;
mod keep;
mod ledger;
mod nodes;
mod servers;
mod take;
mod threads;
mod unlock;
