//! A group of devices, as one process sees it.

use std::time::Instant;

use shardax_mpi::Communicator;

use crate::{Exchange, Outcome};

/// Which places of a group belong to which process.
pub(crate) struct Group<'a> {
    exchange: &'a Exchange,
    pub(crate) devices: Vec<usize>,
    /// Processes in ascending order, each with the places of its devices in the group, in the group's order.
    pub(crate) processes: Vec<(usize, Vec<usize>)>,
}

impl<'a> Group<'a> {
    pub(crate) fn new(exchange: &'a Exchange, devices: Vec<usize>) -> Outcome<Group<'a>> {
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
        Ok(Group { exchange, devices, processes })
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

    fn communicator(&self) -> Outcome<Communicator> {
        let ranks: Vec<usize> = self.processes.iter().map(|(process, _)| *process).collect();
        self.exchange.communicator(&self.devices, &ranks)
    }

    /// Gives everybody the data of each process.
    pub(crate) fn all_gather(&self, data: Vec<u8>, counts: &[usize]) -> Outcome<Vec<u8>> {
        let request = self.communicator()?.all_gather(data, counts);
        request.and_then(|request| request.wait(self.deadline())).map_err(|error| self.late(error))
    }

    /// Gives each process its part of the data of every other.
    pub(crate) fn all_to_all(&self, data: Vec<u8>, counts: &[usize], result_counts: &[usize]) -> Outcome<Vec<u8>> {
        let request = self.communicator()?.all_to_all(data, counts, result_counts);
        request.and_then(|request| request.wait(self.deadline())).map_err(|error| self.late(error))
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.exchange.timeout
    }

    fn late(&self, error: shardax_mpi::Error) -> String {
        let others = self.processes.iter().map(|(process, _)| *process).filter(|&p| p != self.exchange.rank);
        format!("{}; the others are processes {:?}", error.message, others.collect::<Vec<_>>())
    }
}
