//! The protocol over comments of an issue, checked exhaustively for small worlds: workers whose requests arrive when they
//! like, who die at any step; ids in any order; times in coarse units; lists that are old. And protocols that are wrong on
//! purpose, which have to be caught.

mod refs;
mod right;
mod rules;
mod steps;
mod system;
mod wrong;
