//! Redlock: what a majority of nodes makes of a lock, whatever the others do (R17).

mod keep;
mod nodes;
mod servers;
mod take;
mod threads;
