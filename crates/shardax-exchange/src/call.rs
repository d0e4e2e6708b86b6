//! Attributes of a call from a program.

use std::sync::Arc;

use shardax_pjrt::ElementType;
use shardax_pjrt::ffi::{Attr, CallFrame};

use crate::Outcome;

/// The attributes of a call.
pub(crate) struct Call<'a> {
    /// The launch of the program.
    pub(crate) launch: i64,
    /// The number of the call in the program.
    pub(crate) number: i64,
    /// The number of the program, or 0.
    pub(crate) program: u64,
    pub(crate) device: usize,
    pub(crate) ty: ElementType,
    attributes: Vec<(&'a str, Attr<'a>)>,
}

/// The encoded lists that define the groups of a call.
pub(crate) type EncodedGroups = [Vec<u8>; LISTS.len()];

const LISTS: [&str; 3] = ["groups", "sizes", "devices"];

/// The id of the device that makes a call.
pub(crate) fn device(frame: &CallFrame<'_>) -> Outcome<usize> {
    let device = frame.device_ordinal().and_then(|device| usize::try_from(device).ok());
    device.ok_or_else(|| "the plugin does not report the device of the call".into())
}

/// An integer attribute of a call.
fn integer(attributes: &[(&str, Attr<'_>)], name: &str) -> Option<i64> {
    attributes.iter().find(|(attribute, _)| *attribute == name).and_then(|(_, value)| value.as_i64())
}

impl<'a> Call<'a> {
    pub(crate) fn read(frame: &CallFrame<'a>) -> Outcome<Call<'a>> {
        let attributes = frame.attrs();
        let number = integer(&attributes, "n").unwrap_or(-1);
        let program = integer(&attributes, "program").unwrap_or(0) as u64;
        let launch = frame.run_id().ok_or("the plugin does not report the launch of the call")?;
        let ty = frame.args().first().ok_or("the call has no arguments")?.ty;
        Ok(Call { launch, number, program, device: device(frame)?, ty, attributes })
    }

    fn bytes(&self, name: &str) -> &'a [u8] {
        match self.attributes.iter().find(|(n, _)| *n == name) {
            Some((_, Attr::Array(_, bytes))) => bytes,
            _ => &[],
        }
    }

    pub(crate) fn encoded(&self) -> Arc<EncodedGroups> {
        Arc::new(LISTS.map(|name| self.bytes(name).to_vec()))
    }

    pub(crate) fn has_groups(&self, encoded: &EncodedGroups) -> bool {
        LISTS.iter().zip(encoded).all(|(name, bytes)| self.bytes(name) == bytes)
    }

    fn list(&self, name: &str) -> Outcome<Vec<usize>> {
        let list = self.attributes.iter().find(|(n, _)| *n == name).and_then(|(_, list)| list.as_i64s());
        let numbers = list.ok_or_else(|| format!("the call has no list {name:?}"))?;
        numbers.iter().map(|&n| usize::try_from(n).map_err(|_| format!("{name:?} has {n}"))).collect()
    }

    /// The reduction.
    pub(crate) fn op(&self) -> Outcome<&str> {
        let op = self.attributes.iter().find(|(name, _)| *name == "op").and_then(|(_, op)| op.as_str());
        op.ok_or_else(|| "the call has no operation".into())
    }

    /// The devices of this device's group, in order.
    pub(crate) fn group(&self) -> Outcome<Vec<usize>> {
        let (flat, sizes) = (self.list("groups")?, self.list("sizes")?);
        let mut groups = flat.as_slice();
        for size in sizes {
            let (group, later) = groups.split_at_checked(size).ok_or("the groups are truncated")?;
            if group.contains(&self.device) {
                return Ok(group.to_vec());
            }
            groups = later;
        }
        Err("the device is in no group".into())
    }

    /// The sources and targets of a permutation.
    pub(crate) fn pairs(&self) -> Outcome<Vec<(usize, usize)>> {
        Ok(self.list("pairs")?.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())
    }

    /// The devices of the program.
    pub(crate) fn devices(&self) -> Outcome<Vec<usize>> {
        self.list("devices")
    }
}
