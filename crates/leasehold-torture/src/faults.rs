//! Faults: of processes and of their connections, which need no control of the engine, and those of
//! the engine, which the caller of a run injects.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use leasehold::BootInstant;

use crate::history::{Event, Record};
use crate::proxy;

/// Fault of the engine that the caller of [`run_beside`](crate::run_beside) has injected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineFault {
    /// Name of the fault.
    pub name: String,
    /// Time before the fault was injected.
    pub from: BootInstant,
    /// Time at which the engine was available again.
    pub to: BootInstant,
    /// Whether the engine may have lost what it had acknowledged before `to`.
    pub loses: bool,
    /// Whether it may have lost some keys of an operation and kept others.
    pub loses_parts: bool,
}

impl EngineFault {
    pub(crate) fn record(self) -> Record {
        let Self { name: fault, from, to, loses, loses_parts } = self;
        let millis = to.after(from).as_micros().div_ceil(1000);
        let millis = u64::try_from(millis).unwrap_or(u64::MAX);
        let event = Event::EngineFault { fault, millis, loses, loses_parts };
        Record { at: from.as_micros(), process: 0, event }
    }
}

/// Kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// SIGKILL.
    Kill,
    /// SIGSTOP for twice the TTL, then SIGCONT.
    Stop,
    /// All connections are reset.
    Cut,
    /// Nothing arrives for a while, in either direction.
    BlackHole,
    /// Everything arrives late for a while.
    Delay,
    /// One request arrives late: after the TTL, or after its client has given up.
    LateRequest,
    /// One response arrives late: after the TTL, or after its client has given up.
    LateResponse,
    /// Requests arrive, and their responses are lost.
    LostResponse,
    /// One request arrives twice. Only over HTTP.
    Duplicate,
}

/// Every kind of fault with its name.
const NAMES: [(FaultKind, &str); 9] = [
    (FaultKind::Kill, crate::KILL),
    (FaultKind::Stop, "stop"),
    (FaultKind::Cut, "cut"),
    (FaultKind::BlackHole, "black-hole"),
    (FaultKind::Delay, "delay"),
    (FaultKind::LateRequest, "late-request"),
    (FaultKind::LateResponse, "late-response"),
    (FaultKind::LostResponse, "lost-response"),
    (FaultKind::Duplicate, "duplicate"),
];

/// Time after which a client gives up a request.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);

impl FaultKind {
    /// Returns every kind of fault.
    pub fn all() -> Vec<Self> {
        NAMES.iter().map(|(kind, _)| *kind).collect()
    }

    /// Whether the fault needs a proxy between the worker and its engine.
    pub const fn needs_proxy(self) -> bool {
        !matches!(self, Self::Kill | Self::Stop)
    }

    /// Returns how long the fault lasts.
    pub(crate) fn duration(self, ttl: Duration, rng: &mut fastrand::Rng) -> Duration {
        let beyond_timeout = CLIENT_TIMEOUT + Duration::from_secs(1);
        match self {
            Self::Kill | Self::Cut | Self::Duplicate => Duration::ZERO,
            Self::Stop => ttl * 2,
            Self::BlackHole | Self::LateRequest | Self::LateResponse => match rng.u8(0..4) {
                0 => ttl.mul_f64(0.5),
                1 | 2 => ttl.mul_f64(1.5),
                _ => beyond_timeout.max(ttl.mul_f64(1.5)),
            },
            Self::Delay => ttl.mul_f64(0.5 + rng.f64()),
            Self::LostResponse => Duration::from_millis(rng.u64(20..200)),
        }
    }

    /// Returns the fault of the proxy.
    pub(crate) fn of_proxy(self, duration: Duration, rng: &mut fastrand::Rng) -> proxy::Fault {
        match self {
            Self::Kill | Self::Stop | Self::Cut => proxy::Fault::None,
            Self::BlackHole => proxy::Fault::BlackHole,
            Self::Delay => proxy::Fault::Delay(Duration::from_millis(rng.u64(5..150))),
            Self::LateRequest => proxy::Fault::DelayRequest(duration),
            Self::LateResponse => proxy::Fault::DelayResponse(duration),
            Self::LostResponse => proxy::Fault::DropResponse,
            Self::Duplicate => proxy::Fault::Duplicate,
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAMES.iter().find(|(kind, _)| kind == self).map_or("", |(_, name)| name))
    }
}

impl FromStr for FaultKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = NAMES.iter().find(|(_, name)| *name == text);
        found.map(|(kind, _)| *kind).ok_or_else(|| {
            let names: Vec<_> = NAMES.iter().map(|(_, name)| *name).collect();
            format!("'{text}' is not a fault; faults are: {}", names.join(", "))
        })
    }
}
