//! Message that a monitor receives before it starts the command: seven numbers, the variables, the
//! payload.

use std::io::{self, Read};
use std::time::Duration;

use leasehold::BootInstant;

use crate::run::contain::Contain;
use crate::run::timing::Timing;

/// Parameters of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LaunchSpec {
    /// Expiry time of the lease.
    pub(super) valid_until: BootInstant,
    pub(super) timing: Timing,
    pub(super) contain: Contain,
    /// Variables as `NAME=value`, each followed by a NUL.
    pub(super) variables: Vec<u8>,
    /// Input for the command's stdin.
    pub(super) payload: Vec<u8>,
}

impl LaunchSpec {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let numbers = [
            self.valid_until.as_micros(),
            micros(self.timing.kill_after),
            micros(self.timing.margin),
            micros(self.timing.after_renewal),
            self.contain.number(),
            self.variables.len() as u64,
            self.payload.len() as u64,
        ];
        let mut bytes = numbers.map(u64::to_le_bytes).concat();
        bytes.extend_from_slice(&self.variables);
        bytes.extend_from_slice(&self.payload);
        bytes
    }

    pub(super) fn read(mut from: impl Read) -> io::Result<Self> {
        let mut head = [[0; 8]; 7];
        from.read_exact(head.as_flattened_mut())?;
        let [valid_until, kill_after, margin, after_renewal, contain, variables, payload] =
            head.map(u64::from_le_bytes);
        let mut text = |length: u64| {
            let mut text = vec![0; usize::try_from(length).map_err(io::Error::other)?];
            from.read_exact(&mut text).map(|()| text)
        };
        let (variables, payload) = (text(variables)?, text(payload)?);
        let [kill_after, margin, after_renewal] =
            [kill_after, margin, after_renewal].map(Duration::from_micros);
        let timing = Timing { kill_after, margin, after_renewal };
        let contain =
            Contain::from_number(contain).ok_or_else(|| io::Error::other("unknown containment mode"))?;
        Ok(Self { valid_until: BootInstant::from_micros(valid_until), timing, contain, variables, payload })
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_spec_is_read_as_it_was_written() {
        let [kill_after, margin, after_renewal] = [5000, 100, 20_000].map(Duration::from_millis);
        let timing = Timing { kill_after, margin, after_renewal };
        let (variables, payload) = (b"A=b\0".to_vec(), b"{\"a\": 1}".to_vec());
        let contain = Contain::Pidns;
        let spec =
            LaunchSpec { valid_until: BootInstant::from_micros(77), timing, contain, variables, payload };
        assert_eq!(LaunchSpec::read(spec.to_bytes().as_slice()).unwrap(), spec);
        assert!(LaunchSpec::read(&spec.to_bytes()[..61]).is_err());
    }
}
