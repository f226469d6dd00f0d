//! Script that the batcher names in its command.

pub(super) struct Script {
    pub(super) hash: String,
    pub(super) text: String,
}

pub(super) static BATCH: Script = Script { hash: String::new(), text: String::new() };
