//! Arguments and results of the devices of this process in one call.

use std::borrow::Cow;
use std::ops::Range;

use shardax_pjrt::ffi::Arg;
use shardax_pjrt::ffi::rendezvous::Member;

use crate::Outcome;

/// The arrays of each device, treated as one concatenated array.
pub(crate) struct Devices<'c, 'm, 'a> {
    args: Vec<&'m [Arg<'a>]>,
    members: &'c mut [Member<'m, 'a>],
    /// Size of each device's arguments in bytes.
    pub(crate) size: usize,
}

impl<'c, 'm, 'a> Devices<'c, 'm, 'a> {
    pub(crate) fn of(members: &'c mut [Member<'m, 'a>]) -> Outcome<Devices<'c, 'm, 'a>> {
        let mut args = Vec::with_capacity(members.len());
        for member in members.iter_mut() {
            // There is one result for each argument, followed by the order value.
            let order = member.rets.len().checked_sub(1).ok_or("the call has no results")?;
            args.push(&member.args[..order.min(member.args.len())]);
            member.rets[order].data();
        }
        let mut sizes = args.iter().map(|args| args.iter().map(|arg| arg.data.len()).sum::<usize>());
        let size = sizes.next().unwrap_or(0);
        if sizes.all(|other| other == size) {
            Ok(Devices { args, members, size })
        } else {
            Err("the devices pass arrays of different sizes".into())
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.members.len()
    }

    /// A range of a device's arguments.
    pub(crate) fn part(&self, device: usize, range: Range<usize>) -> Cow<'m, [u8]> {
        let mut start = 0;
        for arg in self.args[device] {
            if start <= range.start && range.end <= start + arg.data.len() {
                return Cow::Borrowed(&arg.data[range.start - start..range.end - start]);
            }
            start += arg.data.len();
        }
        // The range crosses from one argument into the next, so it must be copied.
        let mut bytes = vec![0; range.len()];
        self.copy(device, range, &mut bytes);
        Cow::Owned(bytes)
    }

    /// Copies a range of a device's arguments to `to`.
    pub(crate) fn copy(&self, device: usize, range: Range<usize>, mut to: &mut [u8]) {
        let mut start = 0;
        for arg in self.args[device] {
            let end = start + arg.data.len();
            let (from, until) = (range.start.max(start), range.end.min(end));
            if from < until {
                let (part, remaining) = to.split_at_mut(until - from);
                part.copy_from_slice(&arg.data[from - start..until - start]);
                to = remaining;
            }
            start = end;
        }
    }

    /// Writes `bytes` to a device's results at an offset.
    pub(crate) fn write(&mut self, device: usize, offset: usize, mut bytes: &[u8]) -> Outcome<()> {
        let rets = &mut self.members[device].rets;
        let (mut start, count) = (0, rets.len() - 1);
        for ret in &mut rets[..count] {
            let (from, end) = (offset.max(start), start + ret.byte_len());
            if from < end {
                let (part, remaining) = bytes.split_at(bytes.len().min(end - from));
                ret.write(from - start, part);
                bytes = remaining;
            }
            start = end;
        }
        if bytes.is_empty() { Ok(()) } else { Err("more data arrived than the program expects".into()) }
    }

    /// Zeros the results of a device.
    pub(crate) fn clear(&mut self, device: usize) {
        self.members[device].rets.iter_mut().for_each(|ret| ret.data().fill(0));
    }

    /// Writes the same bytes to the results of all devices.
    pub(crate) fn write_to_all(&mut self, offset: usize, bytes: &[u8]) -> Outcome<()> {
        (0..self.count()).try_for_each(|device| self.write(device, offset, bytes))
    }
}
