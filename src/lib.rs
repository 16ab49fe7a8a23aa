//! Distributed locks on Redis for plain `std::thread` programs.
#![forbid(unsafe_code)]
