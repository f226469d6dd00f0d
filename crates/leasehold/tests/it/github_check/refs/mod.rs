//! Locks as git refs, checked exhaustively for small worlds: every read shows any tip that ever was, requests and answers
//! take any time, workers die at any step. And ways that are wrong on purpose, which have to be caught.

mod steps;
mod system;
mod worlds;
