//! The table of arrays, and pictures of their shardings.

use std::collections::BTreeMap;
use std::fmt::Write;

use shardax::error::Result;
use shardax::prelude::*;
use shardax::sharding::DimSpec;
use shardax::visualize_sharding_svg;

use super::{bytes_text, escaped, table};

/// The maximal number of pictures, each of another way to split an array.
const MAX_PICTURES: usize = 6;
/// The maximal number of devices in a picture.
const MAX_DRAWN_DEVICES: usize = 256;

/// Arrays whose paths differ only in their numbers.
struct Group {
    /// The text of the path between its numbers, and all numbers at each place.
    text: Vec<String>,
    numbers: Vec<Vec<usize>>,
    count: usize,
    first: Array,
    /// The size in bytes of one array, and of its shard on a device.
    bytes: usize,
    part: usize,
}

impl Group {
    /// The path, with a range where numbers differ: `.layers[0–11].kernel`.
    fn path(&self) -> String {
        let mut path = String::new();
        for (at, text) in self.text.iter().enumerate() {
            path.push_str(text);
            if let Some((low, high)) = self.numbers.get(at).and_then(|all| all.iter().min().zip(all.iter().max())) {
                let _ = if low == high { write!(path, "{low}") } else { write!(path, "{low}–{high}") };
            }
        }
        path
    }
}

/// Splits a path into text and numbers.
fn split_numbers(path: &str) -> (Vec<String>, Vec<usize>) {
    let (mut text, mut numbers) = (vec![String::new()], Vec::new());
    let mut remaining = path;
    while let Some(at) = remaining.find(|c: char| c.is_ascii_digit()) {
        let (before, digits) = remaining.split_at(at);
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        if let Some(last) = text.last_mut() {
            last.push_str(before);
        }
        match digits[..end].parse() {
            Ok(number) if digits == "0" || !digits.starts_with('0') || end == 1 => {
                numbers.push(number);
                text.push(String::new());
            }
            // Digits with leading zeros, such as `007`, or too many for a number, are text.
            _ => text.iter_mut().last().into_iter().for_each(|last| last.push_str(&digits[..end])),
        }
        remaining = &digits[end..];
    }
    if let Some(last) = text.last_mut() {
        last.push_str(remaining);
    }
    (text, numbers)
}

pub(super) fn section(leaves: Vec<(String, Array)>) -> Result<String> {
    let mut groups: BTreeMap<(Vec<String>, String, String, usize), Group> = BTreeMap::new();
    let count = leaves.len();
    for (path, leaf) in leaves {
        let sharding = leaf.sharding()?;
        let part = sharding.shard_shape(leaf.shape())?.iter().product::<usize>() * leaf.dtype().byte_size();
        let spec = sharding.as_named().map_or("one device".to_owned(), |named| named.spec().to_string());
        let (text, numbers) = split_numbers(&path);
        // The table has a separate column for the sharding, so the type is printed without it.
        let ty = shape_dtype_struct(leaf.shape(), leaf.dtype()).type_name();
        let group = groups.entry((text.clone(), ty, spec, part)).or_insert_with(|| Group {
            text,
            numbers: vec![Vec::new(); numbers.len()],
            count: 0,
            bytes: leaf.nbytes(),
            first: leaf,
            part,
        });
        group.count += 1;
        group.numbers.iter_mut().zip(numbers).for_each(|(all, number)| all.push(number));
    }
    let mut groups: Vec<((Vec<String>, String, String, usize), Group)> = groups.into_iter().collect();
    groups.sort_by_key(|(_, group)| std::cmp::Reverse(group.count * group.bytes));
    let mut rows = Vec::with_capacity(groups.len());
    for ((_, ty, spec, _), group) in &groups {
        let bytes = [group.count * group.bytes, group.count * group.part].map(bytes_text);
        let count = group.count.to_string();
        rows.push([group.path(), ty.clone(), spec.clone(), count].into_iter().chain(bytes).collect::<Vec<_>>());
    }
    let bytes = groups.iter().map(|(_, group)| group.count * group.bytes).sum::<usize>();
    let part = groups.iter().map(|(_, group)| group.count * group.part).sum::<usize>();
    let total = ["total", "", "", &count.to_string(), &bytes_text(bytes), &bytes_text(part)].map(str::to_owned);
    let header = ["array", "type", "split", "arrays", "bytes", "on a device"];
    let mut body = "<h2>Arrays</h2>".to_owned();
    body += &table(&header, 3, &rows, &[total.to_vec()]);
    let mut drawn: Vec<(String, usize)> = Vec::new();
    for ((_, ty, spec, _), group) in &groups {
        let kind = (spec.clone(), group.first.ndim());
        if drawn.len() < MAX_PICTURES
            && !drawn.contains(&kind)
            && let Some(picture) = picture(&group.first)?
        {
            drawn.push(kind);
            let caption = format!("{} {ty}, {spec}", group.path());
            let _ = write!(
                body,
                "<figure><div class=\"wide\">{picture}</div><figcaption>{}</figcaption></figure>",
                escaped(caption)
            );
        }
    }
    Ok(body)
}

/// Draws the sharding of an array along two dimensions: the two that are split, or the one that is split and the
/// largest other one.
fn picture(array: &Array) -> Result<Option<String>> {
    let (shape, sharding) = (array.shape(), array.sharding()?);
    let Some(named) = sharding.as_named() else { return Ok(None) };
    if shape.is_empty() || sharding.num_devices() > MAX_DRAWN_DEVICES || sharding.is_fully_replicated() {
        return Ok(None);
    }
    let mut dims: Vec<usize> = (0..shape.len()).collect();
    if dims.len() > 2 {
        dims.sort_by_key(|d| (named.spec().axes(*d).is_empty(), std::cmp::Reverse(shape[*d])));
        dims.truncate(2);
        dims.sort_unstable();
    }
    let spec = dims.iter().map(|d| named.spec().dims().get(*d).cloned().unwrap_or(DimSpec::None));
    let sizes: Vec<usize> = dims.iter().map(|d| shape[*d]).collect();
    let slice = NamedSharding::try_new(named.mesh(), PartitionSpec::new(spec))?;
    visualize_sharding_svg(&sizes, slice).map(Some)
}
