//! The five collectives.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::Range;

use shardax_pjrt::ElementType;
use shardax_pjrt::ffi::CallFrame;
use shardax_pjrt::ffi::rendezvous::Member;

use crate::call::Call;
use crate::devices::Devices;
use crate::group::{Group, Started, Stream};
use crate::reduce::reduce;
use crate::{Exchange, Outcome, SumOrder};

/// The total size in bytes up to which every process receives all contributions to a sum. Larger sums are divided into
/// slices, each computed by one process.
const MAX_GATHERED_BYTES: usize = 256 << 10;
/// The approximate number of bytes that a process sends in a round: few enough to stay in the cache.
const ROUND_BYTES: usize = 512 << 10;
/// The smallest message size: shorter messages take as long.
const MIN_MESSAGE: usize = 16 << 10;

impl Exchange {
    /// Makes the devices of this process in a group rendezvous. The last to arrive runs `work` for all of them.
    fn rendezvous(
        &self,
        call: &Call<'_>,
        group: &Group<'_>,
        frame: &mut CallFrame<'_>,
        work: impl FnOnce(&mut Devices<'_, '_, '_>) -> Outcome<()>,
    ) -> Outcome<()> {
        let devices: Vec<usize> = group.local_places().iter().map(|&place| group.devices[place]).collect();
        let count = devices.len();
        let member = devices.iter().position(|&device| device == call.device);
        let member = member.ok_or("the calling device is not in its group")?;
        let key = ((call.launch, devices), call.number);
        let limits = (self.timeout(), &self.failure);
        let (args, rets) = frame.split();
        self.rendezvous
            .join(key, (member, count), Member { args, rets }, limits, |members| work(&mut Devices::of(members)?))
    }

    pub(crate) fn all_reduce(&self, call: Call<'_>, frame: &mut CallFrame<'_>) -> Outcome<()> {
        let (group, op, ty) = (Group::of(self, &call, Call::group)?, call.op()?, call.ty);
        self.rendezvous(&call, &group, frame, |devices| {
            let by_process = self.sum_order == SumOrder::Fast && !group.is_local();
            let merged;
            let group = if by_process {
                merged = group.by_process();
                &merged
            } else {
                &group
            };
            let sum = Sum { group, ty, op, by_process };
            if !group.is_local() && devices.size * group.devices.len() <= MAX_GATHERED_BYTES {
                sum.sum_in_every_process(devices)
            } else {
                sum.sum_by_slices(devices)
            }
        })
    }

    pub(crate) fn all_gather(&self, call: Call<'_>, frame: &mut CallFrame<'_>) -> Outcome<()> {
        let group = Group::of(self, &call, Call::group)?;
        self.rendezvous(&call, &group, frame, |devices| {
            let size = devices.size;
            // MPI's own operation has the lowest latency. Large arrays are sent in pieces instead, so that copies
            // overlap with messages.
            if !group.is_local() && size * group.devices.len() <= MAX_GATHERED_BYTES {
                let gathered = gathered(&group, &local_parts(devices, &(0..size)))?;
                let places = group.processes.iter().flat_map(|(_, places)| places);
                return places
                    .zip(gathered.chunks_exact(size.max(1)))
                    .try_for_each(|(&place, bytes)| devices.write_to_all(place * size, bytes));
            }
            let (rounds, range) = pieces(size, 1, piece_size(&group, group.max_devices()));
            group.rounds(
                devices,
                rounds,
                |devices, round| Ok(group.to_all(group.packed(&local_parts(devices, &range(round))))),
                |round, peer| group.count(peer) * range(round).len(),
                |devices, round, received| {
                    let range = range(round);
                    let local = local_parts(devices, &range);
                    let ordered = group.in_order(&local, received, range.len());
                    ordered
                        .into_iter()
                        .enumerate()
                        .try_for_each(|(place, bytes)| devices.write_to_all(place * size + range.start, bytes))
                },
            )
        })
    }

    pub(crate) fn reduce_scatter(&self, call: Call<'_>, frame: &mut CallFrame<'_>) -> Outcome<()> {
        let (group, op, ty) = (Group::of(self, &call, Call::group)?, call.op()?, call.ty);
        self.rendezvous(&call, &group, frame, |devices| {
            trade(&group, devices, ty.byte_size(), |devices, target, offset, parts| {
                let mut sum = group.buffer(parts.first().map_or(0, |part| part.len()));
                reduce(ty, op, parts, &mut sum)?;
                devices.write(target, offset, &sum)?;
                self.buffers.put_back([sum]);
                Ok(())
            })
        })
    }

    pub(crate) fn all_to_all(&self, call: Call<'_>, frame: &mut CallFrame<'_>) -> Outcome<()> {
        let group = Group::of(self, &call, Call::group)?;
        self.rendezvous(&call, &group, frame, |devices| {
            let part = devices.size / group.devices.len();
            trade(&group, devices, 1, |devices, target, offset, parts| {
                let mut parts = parts.iter().enumerate();
                parts.try_for_each(|(place, bytes)| devices.write(target, place * part + offset, bytes))
            })
        })
    }

    pub(crate) fn permute(&self, call: Call<'_>, frame: &mut CallFrame<'_>) -> Outcome<()> {
        let (group, pairs) = (Group::of(self, &call, Call::devices)?, call.pairs()?);
        // Sources and targets, each with its process and its index among the devices of that process.
        let pairs = pairs.iter().map(|&(from, to)| Ok((position(&group, from)?, position(&group, to)?)));
        let pairs = pairs.collect::<Outcome<Vec<_>>>()?;
        let me = group.me;
        self.rendezvous(&call, &group, frame, |devices| {
            // A device that is no target receives zeros, as in `lax::ppermute`.
            for device in 0..devices.count() {
                if !pairs.iter().any(|&(_, target)| target == (me, device)) {
                    devices.clear(device);
                }
            }
            let (rounds, range) = pieces(devices.size, 1, piece_size(&group, group.max_devices()));
            group.rounds(
                devices,
                rounds,
                |devices, round| {
                    let range = range(round);
                    group.to_each(|peer| {
                        let mut bytes = group.buffer(between(&pairs, me, peer).count() * range.len());
                        between(&pairs, me, peer)
                            .zip(bytes.chunks_exact_mut(range.len().max(1)))
                            .for_each(|(&((_, device), _), to)| devices.copy(device, range.clone(), to));
                        Ok(bytes)
                    })
                },
                |round, peer| between(&pairs, peer, me).count() * range(round).len(),
                |devices, round, received| {
                    let range = range(round);
                    // Both sides list the pairs between two processes in the same order, so the k-th piece of a
                    // message belongs to the k-th pair. Pairs within this process need no message.
                    for (process, bytes) in received.iter().enumerate() {
                        for (k, &((_, source), (_, target))) in between(&pairs, process, me).enumerate() {
                            if process == me {
                                let local = devices.part(source, range.clone());
                                devices.write(target, range.start, &local)?;
                            } else {
                                devices.write(target, range.start, &bytes[k * range.len()..][..range.len()])?;
                            }
                        }
                    }
                    Ok(())
                },
            )
        })
    }
}

/// The size of a piece in bytes, if a process sends `pieces` of them to each of the others in a round.
fn piece_size(group: &Group<'_>, pieces: usize) -> usize {
    (ROUND_BYTES / (pieces * group.processes.len().saturating_sub(1).max(1))).max(MIN_MESSAGE / pieces)
}

/// Divides `size` bytes into pieces of about `target` bytes without splitting units. Returns the number of pieces, and
/// a function that computes the range of a piece.
fn pieces(size: usize, unit: usize, target: usize) -> (usize, impl Fn(usize) -> Range<usize>) {
    let (count, units) = (size.div_ceil(target.max(unit)).max(1), size / unit);
    (count, move |piece: usize| unit * (units * piece / count)..unit * (units * (piece + 1) / count))
}

/// A range of the arguments of each device of this process.
fn local_parts<'m>(devices: &Devices<'_, 'm, '_>, range: &Range<usize>) -> Vec<Cow<'m, [u8]>> {
    (0..devices.count()).map(|device| devices.part(device, range.clone())).collect()
}

/// Gathers parts of equal length from all devices, ordered by process.
fn gathered(group: &Group<'_>, local: &[Cow<'_, [u8]>]) -> Outcome<Vec<u8>> {
    let len = local.first().map_or(0, |part| part.len());
    let counts: Vec<usize> = (0..group.processes.len()).map(|process| group.count(process) * len).collect();
    group.all_gather(local.concat(), &counts)
}

/// A reduction over the arrays of a group.
struct Sum<'s> {
    group: &'s Group<'s>,
    ty: ElementType,
    op: &'s str,
    /// Each process first reduces the arrays of its own devices.
    by_process: bool,
}

impl Sum<'_> {
    /// The contributions of this process to a range.
    fn contributions<'m>(&self, devices: &Devices<'_, 'm, '_>, range: &Range<usize>) -> Outcome<Vec<Cow<'m, [u8]>>> {
        let parts = local_parts(devices, range);
        if !self.by_process || parts.len() < 2 {
            return Ok(parts);
        }
        let mut sum = vec![0; range.len()];
        reduce(self.ty, self.op, &parts.iter().map(|part| &**part).collect::<Vec<_>>(), &mut sum)?;
        Ok(vec![Cow::Owned(sum)])
    }

    /// Computes the entire sum in every process.
    fn sum_in_every_process(&self, devices: &mut Devices<'_, '_, '_>) -> Outcome<()> {
        let (group, size) = (self.group, devices.size);
        let gathered = gathered(group, &self.contributions(devices, &(0..size))?)?;
        let places: Vec<usize> = group.processes.iter().flat_map(|(_, places)| places.iter().copied()).collect();
        let mut parts: Vec<&[u8]> = vec![&[]; places.len()];
        places.iter().enumerate().for_each(|(k, &place)| parts[place] = &gathered[k * size..(k + 1) * size]);
        let mut sum = vec![0; size];
        reduce(self.ty, self.op, &parts, &mut sum)?;
        devices.write_to_all(0, &sum)
    }

    /// Computes the sum of some slices in each process, which sends it to the others. While a sum is sent, the next
    /// slices are received, so at most two sends of sums are in flight.
    fn sum_by_slices(&self, devices: &mut Devices<'_, '_, '_>) -> Outcome<()> {
        let (group, unit) = (self.group, self.ty.byte_size());
        let (me, count) = (group.me, group.processes.len());
        let (rounds, _) = pieces(devices.size, unit, count * piece_size(group, group.max_devices()));
        let slices = Slices { elements: devices.size / unit, rounds, processes: count, unit };
        let mut sums: VecDeque<(usize, Started)> = VecDeque::new();
        group.rounds(
            devices,
            rounds,
            // Send to each process this process's contributions to the slice that the other one sums.
            |devices, round| {
                group.to_each(|peer| Ok(group.packed(&self.contributions(devices, &slices.range(round, peer))?)))
            },
            |round, peer| group.count(peer) * slices.range(round, me).len(),
            |devices, round, received| {
                // Sum this process's slice from all contributions, in the group's order.
                let range = slices.range(round, me);
                let local = self.contributions(devices, &range)?;
                let mut sum = group.buffer(range.len());
                reduce(self.ty, self.op, &group.in_order(&local, received, range.len()), &mut sum)?;
                devices.write_to_all(range.start, &sum)?;
                if group.is_local() {
                    return Ok(());
                }
                // Start to send the sum, and wait only for the previous round's, which had time to arrive.
                let sends = group.to_all(sum);
                sums.push_back((round, group.start(Stream::Sums, sends, |peer| slices.range(round, peer).len())?));
                if sums.len() > 1 {
                    sums.pop_front().map_or(Ok(()), |oldest| self.receive_sums(devices, &slices, oldest))
                } else {
                    Ok(())
                }
            },
        )?;
        sums.into_iter().try_for_each(|remaining| self.receive_sums(devices, &slices, remaining))
    }

    /// Waits for the other processes' sums of a round and writes them to all devices of this process.
    fn receive_sums(
        &self,
        devices: &mut Devices<'_, '_, '_>,
        slices: &Slices,
        (round, started): (usize, Started),
    ) -> Outcome<()> {
        self.group.finish(started, |received| {
            let mut peers = self.group.peers();
            peers.try_for_each(|peer| devices.write_to_all(slices.range(round, peer).start, &received[peer]))
        })
    }
}

/// The slices of an array whose sums processes compute: a round has one slice for each process.
struct Slices {
    elements: usize,
    rounds: usize,
    processes: usize,
    /// The bytes of an element.
    unit: usize,
}

impl Slices {
    /// The bytes of the slice that a process sums in a round. Slices differ by at most one element, so that no process
    /// has more work than the others.
    fn range(&self, round: usize, process: usize) -> Range<usize> {
        let (slice, count) = (round * self.processes + process, self.rounds * self.processes);
        let [start, end] = [slice, slice + 1].map(|slice| self.elements * slice / count * self.unit);
        start..end
    }
}

/// The process of a device, and the index of the device among the devices of that process.
fn position(group: &Group<'_>, device: usize) -> Outcome<(usize, usize)> {
    let mut positions = group.processes.iter().enumerate().filter_map(|(process, (_, places))| {
        Some((process, places.iter().position(|&place| group.devices[place] == device)?))
    });
    positions.next().ok_or_else(|| format!("device {device} is not in the mesh"))
}

/// Distributes to each device its part of the arguments of every device, piece by piece. `take` receives the device,
/// the offset of the piece in the part, and the pieces of all devices in the group's order.
fn trade(
    group: &Group<'_>,
    devices: &mut Devices<'_, '_, '_>,
    unit: usize,
    take: impl Fn(&mut Devices<'_, '_, '_>, usize, usize, &[&[u8]]) -> Outcome<()>,
) -> Outcome<()> {
    let part = devices.size / group.devices.len();
    let (rounds, range) = pieces(part, unit, piece_size(group, group.max_devices() * group.max_devices()));
    group.rounds(
        devices,
        rounds,
        |devices, round| {
            let range = range(round);
            group.to_each(|peer| {
                let places = &group.processes[peer].1;
                let mut bytes = group.buffer(devices.count() * places.len() * range.len());
                // From each local device, the parts for all devices of the peer.
                let pairs = (0..devices.count()).flat_map(|device| places.iter().map(move |&place| (device, place)));
                pairs
                    .zip(bytes.chunks_exact_mut(range.len().max(1)))
                    .for_each(|((device, place), to)| devices.copy(device, shifted(&range, place * part), to));
                Ok(bytes)
            })
        },
        |round, peer| group.count(peer) * group.local_places().len() * range(round).len(),
        |devices, round, received| {
            let range = range(round);
            for (target, &place) in group.local_places().iter().enumerate() {
                let local = local_parts(devices, &shifted(&range, place * part));
                let mut parts: Vec<&[u8]> = vec![&[]; group.devices.len()];
                for (process, (_, sources)) in group.processes.iter().enumerate() {
                    for (k, &source) in sources.iter().enumerate() {
                        let start = (k * group.local_places().len() + target) * range.len();
                        parts[source] = if process == group.me {
                            &local[k]
                        } else {
                            &received[process][start..start + range.len()]
                        };
                    }
                }
                take(devices, target, range.start, &parts)?;
            }
            Ok(())
        },
    )
}

/// A source or a target: its process, and its index among the devices of that process.
type Position = (usize, usize);

/// Returns the pairs between two processes, in order.
fn between(pairs: &[(Position, Position)], from: usize, to: usize) -> impl Iterator<Item = &(Position, Position)> {
    pairs.iter().filter(move |(source, target)| (source.0, target.0) == (from, to))
}

fn shifted(range: &Range<usize>, offset: usize) -> Range<usize> {
    offset + range.start..offset + range.end
}
