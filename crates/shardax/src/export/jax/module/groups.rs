//! Groups of devices that a collective specifies by mesh axes. They become lists of devices, because the plugin's
//! StableHLO cannot specify groups by axes.

use super::*;

/// A factor of a mesh axis that is cut into parts: its size, and its stride in the numbers of the devices.
struct Factor {
    axis: usize,
    /// The product of the factors of this axis before it.
    before: i64,
    size: i64,
    stride: i64,
}

impl Factor {
    /// Returns `true` for a factor of this part of an axis: its axis, the product of the sizes before it, and its size.
    fn is_in(&self, &(axis, before, size): &(usize, i64, i64)) -> bool {
        self.axis == axis && before <= self.before && self.before < before.saturating_mul(size)
    }
}

impl<'a> Writer<'a> {
    /// Replaces the groups of a collective over mesh axes by lists of devices.
    pub(super) fn flatten_groups(&self, op: &mut Operation<'a>) -> Result<()> {
        for (_, attribute) in &mut op.named {
            if let Attribute::MeshAxes(mesh, axes) = *attribute {
                *attribute = self.groups(mesh, axes)?;
            }
        }
        Ok(())
    }

    fn groups(&self, mesh: usize, axes: usize) -> Result<Attribute<'a>> {
        let name = match self.dictionary.attribute(mesh)? {
            Attribute::Text(name) => name,
            Attribute::Symbol(name) => self.dictionary.string(name)?,
            _ => return Err(damaged("its program has groups of devices on a mesh without a name")),
        };
        let mesh = self.mesh_axes.get(name);
        let mesh = mesh.ok_or_else(|| damaged(format!("its program has groups of devices on no mesh: {name}")))?;
        let devices = mesh.iter().try_fold(1usize, |all, (_, size)| all.checked_mul(*size)).filter(|all| *all > 0);
        let devices = devices.ok_or_else(|| damaged(format!("its program has the mesh {mesh:?}")))?;
        self.dictionary.spend(devices.saturating_mul(8))?;
        let parts = self.axis_parts(mesh, axes)?;
        let factors = factors(mesh, devices as i64, &parts)?;
        let within: Vec<&Factor> =
            parts.iter().flat_map(|part| factors.iter().filter(move |factor| factor.is_in(part))).collect();
        let across = factors.iter().filter(|factor| !parts.iter().any(|part| factor.is_in(part))).collect::<Vec<_>>();
        let (first, offsets) = (offsets(&across), offsets(&within));
        let devices = first.iter().flat_map(|first| offsets.iter().map(move |offset| first + offset)).collect();
        Ok(Attribute::Numbers(vec![first.len() as i64, offsets.len() as i64], devices))
    }

    /// The axes of a group in order: the index of each axis in the mesh, and the part of it.
    fn axis_parts(&self, mesh: &[(String, usize)], axes: usize) -> Result<Vec<(usize, i64, i64)>> {
        let Attribute::Array(axes) = self.dictionary.attribute(axes)? else {
            return Err(damaged("its program has groups of devices without axes"));
        };
        let parts = axes.into_iter().map(|axis| {
            let Attribute::AxisRef(name, part) = self.dictionary.attribute(axis)? else {
                return Err(damaged("its program has groups of devices over something other than axes"));
            };
            let name = self.dictionary.string(name)?;
            let axis = mesh.iter().position(|(of, _)| of == name);
            let axis = axis.ok_or_else(|| damaged(format!("its program has groups over no axis of a mesh: {name}")))?;
            match part.map(|part| self.dictionary.attribute(part)).transpose()? {
                None => Ok((axis, 1, mesh[axis].1 as i64)),
                Some(Attribute::SubAxis(before, size)) if before >= 1 && size >= 1 => Ok((axis, before, size)),
                _ => Err(damaged(format!("its program has groups over an invalid part of the axis {name}"))),
            }
        });
        parts.collect()
    }
}

/// Cuts the axes of a mesh at the boundaries of the groups' parts.
fn factors(mesh: &[(String, usize)], devices: i64, parts: &[(usize, i64, i64)]) -> Result<Vec<Factor>> {
    let mut factors = Vec::new();
    let mut stride = devices;
    for (axis, (name, size)) in mesh.iter().enumerate() {
        let of_axis = parts.iter().filter(|(of, ..)| *of == axis);
        let mut cuts: Vec<i64> =
            of_axis.flat_map(|(_, before, size)| [*before, before.saturating_mul(*size)]).collect();
        cuts.extend([1, *size as i64]);
        cuts.sort_unstable();
        cuts.dedup();
        for cut in cuts.windows(2) {
            let size = cut[1] / cut[0];
            if cut[1] % cut[0] != 0 || stride % size != 0 {
                return Err(damaged(format!("its program has groups over invalid parts of the axis {name}")));
            }
            stride /= size;
            factors.push(Factor { axis, before: cut[0], size, stride });
        }
    }
    Ok(factors)
}

/// The offsets of all positions along these factors. The last factor varies fastest.
fn offsets(factors: &[&Factor]) -> Vec<i64> {
    factors.iter().fold(vec![0], |offsets, factor| {
        offsets
            .into_iter()
            .flat_map(|offset| (0..factor.size).map(move |position| offset + position * factor.stride))
            .collect()
    })
}
