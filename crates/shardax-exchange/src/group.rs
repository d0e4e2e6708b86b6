//! A group of devices, as one process sees it.

use std::sync::Arc;

use crate::call::Call;
use crate::channel::{At, Channel};
use crate::{Exchange, Outcome};

/// Which places of a group belong to which process.
pub(crate) struct Group<'a> {
    exchange: &'a Exchange,
    /// The call that it is for.
    at: At,
    pub(crate) devices: Vec<usize>,
    /// Processes in ascending order, each with the places of its devices in the group, in the group's order.
    pub(crate) processes: Vec<(usize, Vec<usize>)>,
}

impl<'a> Group<'a> {
    pub(crate) fn new(exchange: &'a Exchange, call: &Call<'_>, devices: Vec<usize>) -> Outcome<Group<'a>> {
        let mut processes: Vec<(usize, Vec<usize>)> = Vec::new();
        for (place, &device) in devices.iter().enumerate() {
            let owner = exchange.owner(device)?;
            match processes.iter_mut().find(|(process, _)| *process == owner) {
                Some((_, places)) => places.push(place),
                None => processes.push((owner, vec![place])),
            }
        }
        processes.sort();
        if !processes.iter().any(|(process, _)| *process == exchange.rank) {
            return Err(format!("none of the devices {devices:?} belongs to this process"));
        }
        Ok(Group { exchange, at: At::of(call), devices, processes })
    }

    /// The places of this process's devices.
    pub(crate) fn own(&self) -> &[usize] {
        let own = self.processes.iter().find(|(process, _)| *process == self.exchange.rank);
        own.map_or(&[], |(_, places)| places)
    }

    /// Whether all devices are this process's.
    pub(crate) fn is_local(&self) -> bool {
        self.processes.len() == 1
    }

    fn channel(&self) -> Outcome<Arc<Channel>> {
        let ranks: Vec<usize> = self.processes.iter().map(|(process, _)| *process).collect();
        self.exchange.channel(&self.devices, &ranks)
    }

    /// Gives everybody the data of each process.
    pub(crate) fn all_gather(&self, data: Vec<u8>, counts: &[usize]) -> Outcome<Vec<u8>> {
        self.channel()?.all_gather((self.exchange, self.at), data, counts)
    }

    /// Gives each process its part of the data of every other.
    pub(crate) fn all_to_all(&self, data: Vec<u8>, counts: &[usize], result_counts: &[usize]) -> Outcome<Vec<u8>> {
        self.channel()?.all_to_all((self.exchange, self.at), data, counts, result_counts)
    }
}
