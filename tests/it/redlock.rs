//! Redlock: a majority of nodes decides about a lock, whatever the other nodes do (R17).

mod again;
mod keep;
pub mod nodes;
mod servers;
mod take;
mod threads;
mod unlock;
mod withdrawals;
