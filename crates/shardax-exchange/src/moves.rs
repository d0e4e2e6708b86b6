//! The five functions in which devices exchange data.

use std::ops::Range;

use shardax_pjrt::ffi::CallFrame;

use crate::call::{self, Call};
use crate::group::Group;
use crate::meet::Results;
use crate::reduce::reduce;
use crate::{Exchange, Outcome};

/// Contributions up to this size go to everybody whole; larger ones are combined part by part, each in one process.
const SMALL: usize = 64 << 10;

impl Exchange {
    /// Has the devices of this process in a group meet, and gives each its results.
    fn meet(
        &self,
        call: &Call<'_>,
        group: &Group<'_>,
        frame: &mut CallFrame<'_>,
        work: impl FnOnce(Vec<Vec<u8>>) -> Outcome<Results>,
    ) -> Outcome<()> {
        let own = group.own();
        let member = own.iter().position(|&place| group.devices[place] == call.device);
        let member = member.ok_or("the calling device is not in its group")?;
        let data = call::gather_args(frame);
        let at = ((call.launch, group.devices.clone()), call.number);
        let results = self.meetings.meet(at, (member, own.len()), data, (self.timeout(), &self.failure), work)?;
        call::scatter_results(frame, results.of(member))
    }

    pub(crate) fn all_reduce(&self, call: Call<'_>, frame: &mut CallFrame<'_>) -> Outcome<()> {
        let (group, op, ty) = (Group::new(self, &call, call.group()?)?, call.op()?, call.ty);
        self.meet(&call, &group, frame, |own| {
            let size = equal_sizes(&own)?;
            let mut out = vec![0; size];
            if group.is_local() {
                reduce(ty, op, &views(&own), &mut out)?;
            } else if size <= SMALL {
                let all = gather(&group, own, size)?;
                reduce(ty, op, &views(&all), &mut out)?;
            } else {
                let elements = size / ty.byte_size();
                let count = group.processes.len();
                let part = |k: usize| -> Range<usize> {
                    elements * k / count * ty.byte_size()..elements * (k + 1) / count * ty.byte_size()
                };
                let me = group.processes.iter().position(|(process, _)| *process == self.rank).unwrap_or(0);
                let mut data = Vec::with_capacity(own.len() * size);
                (0..count).for_each(|k| own.iter().for_each(|x| data.extend_from_slice(&x[part(k)])));
                let counts: Vec<usize> = (0..count).map(|k| own.len() * part(k).len()).collect();
                let from: Vec<usize> = group.processes.iter().map(|(_, p)| p.len() * part(me).len()).collect();
                drop(own);
                let got = group.all_to_all(data, &counts, &from)?;
                let mine = in_group_order(&group, &got, part(me).len());
                let mut sum = vec![0; part(me).len()];
                reduce(ty, op, &mine, &mut sum)?;
                out = group.all_gather(sum, &(0..count).map(|k| part(k).len()).collect::<Vec<_>>())?;
            }
            Ok(Results::Same(out))
        })
    }

    pub(crate) fn all_gather(&self, call: Call<'_>, frame: &mut CallFrame<'_>) -> Outcome<()> {
        let group = Group::new(self, &call, call.group()?)?;
        self.meet(&call, &group, frame, |own| {
            let size = equal_sizes(&own)?;
            let all = if group.is_local() { own } else { gather(&group, own, size)? };
            Ok(Results::Same(all.concat()))
        })
    }

    pub(crate) fn reduce_scatter(&self, call: Call<'_>, frame: &mut CallFrame<'_>) -> Outcome<()> {
        let (group, op, ty) = (Group::new(self, &call, call.group()?)?, call.op()?, call.ty);
        self.meet(&call, &group, frame, |own| {
            let parts = trade(&group, own)?;
            let sum = |parts: &Vec<Vec<u8>>| {
                let mut out = vec![0; parts.first().map_or(0, Vec::len)];
                reduce(ty, op, &views(parts), &mut out).map(|()| out)
            };
            Ok(Results::Each(parts.iter().map(sum).collect::<Outcome<_>>()?))
        })
    }

    pub(crate) fn all_to_all(&self, call: Call<'_>, frame: &mut CallFrame<'_>) -> Outcome<()> {
        let group = Group::new(self, &call, call.group()?)?;
        self.meet(&call, &group, frame, |own| {
            let parts = trade(&group, own)?;
            Ok(Results::Each(parts.iter().map(|parts| parts.concat()).collect()))
        })
    }

    pub(crate) fn permute(&self, call: Call<'_>, frame: &mut CallFrame<'_>) -> Outcome<()> {
        let (group, pairs) = (Group::new(self, &call, call.devices()?)?, call.pairs()?);
        self.meet(&call, &group, frame, |own| {
            let size = equal_sizes(&own)?;
            let mine: Vec<usize> = group.own().iter().map(|&place| group.devices[place]).collect();
            let member = |device: usize| mine.iter().position(|&d| d == device);
            let mut results = vec![vec![0; size]; own.len()];
            let (mut data, mut counts, mut from) = (Vec::new(), Vec::new(), Vec::new());
            let mut arriving = Vec::new();
            for (process, _) in &group.processes {
                let (mut there, mut here) = (0, 0);
                for &(source, target) in &pairs {
                    let (source_owner, target_owner) = (self.owner(source)?, self.owner(target)?);
                    if source_owner == self.rank && target_owner == *process {
                        data.extend_from_slice(&own[member(source).ok_or("a source is not in the mesh")?]);
                        there += size;
                    }
                    if target_owner == self.rank && source_owner == *process {
                        arriving.push(member(target).ok_or("a target is not in the mesh")?);
                        here += size;
                    }
                }
                counts.push(there);
                from.push(here);
            }
            let got = if group.is_local() { data } else { group.all_to_all(data, &counts, &from)? };
            for (k, target) in arriving.into_iter().enumerate() {
                results[target].copy_from_slice(&got[k * size..(k + 1) * size]);
            }
            Ok(Results::Each(results))
        })
    }
}

fn views(parts: &[Vec<u8>]) -> Vec<&[u8]> {
    parts.iter().map(Vec::as_slice).collect()
}

fn equal_sizes(own: &[Vec<u8>]) -> Outcome<usize> {
    let size = own.first().map_or(0, Vec::len);
    if own.iter().all(|x| x.len() == size) { Ok(size) } else { Err("the devices bring arrays of several sizes".into()) }
}

/// What lies process by process, of `size` bytes for each device, in the group's order.
fn in_group_order<'b>(group: &Group<'_>, got: &'b [u8], size: usize) -> Vec<&'b [u8]> {
    let mut ordered: Vec<&[u8]> = vec![&[]; group.devices.len()];
    let places = group.processes.iter().flat_map(|(_, places)| places);
    places.enumerate().for_each(|(k, &place)| ordered[place] = &got[k * size..(k + 1) * size]);
    ordered
}

/// The data of all devices of the group, in its order.
fn gather(group: &Group<'_>, own: Vec<Vec<u8>>, size: usize) -> Outcome<Vec<Vec<u8>>> {
    let counts: Vec<usize> = group.processes.iter().map(|(_, places)| places.len() * size).collect();
    let got = group.all_gather(own.concat(), &counts)?;
    Ok(in_group_order(group, &got, size).into_iter().map(<[u8]>::to_vec).collect())
}

/// For each own device, its part of the data of every device, in the group's order.
fn trade(group: &Group<'_>, own: Vec<Vec<u8>>) -> Outcome<Vec<Vec<Vec<u8>>>> {
    let members = group.devices.len();
    let size = equal_sizes(&own)? / members;
    let part = |x: &[u8], place: usize| x[place * size..(place + 1) * size].to_vec();
    if group.is_local() {
        // Its places are 0, 1, 2, …
        return Ok((0..members).map(|target| own.iter().map(|x| part(x, target)).collect()).collect());
    }
    let mut data = Vec::with_capacity(own.iter().map(Vec::len).sum());
    for (_, places) in &group.processes {
        own.iter().for_each(|x| places.iter().for_each(|&p| data.extend_from_slice(&x[p * size..(p + 1) * size])));
    }
    let here = own.len();
    let counts: Vec<usize> = group.processes.iter().map(|(_, places)| here * places.len() * size).collect();
    let got = group.all_to_all(data, &counts, &counts)?;
    // From each device, the parts of all own ones.
    let sources = in_group_order(group, &got, here * size);
    Ok((0..here).map(|target| sources.iter().map(|x| part(x, target)).collect()).collect())
}
