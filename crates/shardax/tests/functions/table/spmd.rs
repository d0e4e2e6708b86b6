//! Collectives, over the axis of a `vmap`.

use super::*;

table! {
    "spmd::all_gather" => |c| c.mapped(|x| all_gather(x, "i", c.i));
    "spmd::all_gather_invariant" => |c| c.mapped(|x| all_gather_invariant(x, "i", c.i));
    "spmd::all_gather_tiled" => |c| c.mapped(|x| all_gather_tiled(x, "i", c.i));
    "spmd::all_to_all" => |c| c.mapped(|x| all_to_all(x, "i", c.i, 0));
    "spmd::all_to_all_tiled" => |c| c.mapped(|x| all_to_all_tiled(x, "i", 0, c.i));
    "spmd::axis_index" => |c| same!(c; c.mapped(|_| axis_index("i")), axis_index("none"), axis_index("é\"\n"));
    "spmd::axis_size" => |c| axis_size("none").map(done).and(c.mapped(|x| x * axis_size("i").unwrap_or(0)));
    "spmd::pbroadcast" => |c| c.mapped(|x| pbroadcast(x, "i", c.n));
    "spmd::pcast" => |c| c.mapped(|x| pcast(x, "i"));
    "spmd::pcast_to" => |c| same!(c; c.mapped(|x| pcast_to(x, "i", lax::CastTo::Unreduced)), pcast_to(c.x.clone(), "none", lax::CastTo::Reduced));
    "spmd::pmax" => |c| same!(c; c.mapped(|x| pmax(x, "i")), pmax(c.x.clone(), "none"));
    "spmd::pmean" => |c| c.mapped(|x| pmean(x, "i"));
    "spmd::pmin" => |c| c.mapped(|x| pmin(x, ["i", "i"]));
    "spmd::ppermute" => |c| c.mapped(|x| ppermute(x, "i", [(c.n, 0), (0, c.n)]));
    "spmd::pshift" => |c| same!(c; c.mapped(|x| pshift(x, "i", c.i)), pshift(c.x.clone(), "none", 1));
    "spmd::pshuffle" => |c| c.mapped(|x| pshuffle(x, "i", [c.n, 1, 2]));
    "spmd::psum" => |c| same!(c; c.mapped(|x| psum(x, "i")), psum(c.x.clone(), "é"));
    "spmd::psum_scatter" => |c| c.mapped(|x| psum_scatter(x, "i", c.i));
    "spmd::psum_scatter_tiled" => |c| c.mapped(|x| psum_scatter_tiled(x, "i", c.i));
    "spmd::pswapaxes" => |c| c.mapped(|x| pswapaxes(x, "i", c.i));
    "spmd::ragged_all_to_all" => |c| c.mapped(|x| {
        let places = &c.places;
        let slices = RaggedSlices { input_offsets: places, send_sizes: places, output_offsets: places, recv_sizes: places };
        ragged_all_to_all(x.clone(), x, slices, "i")
    });
}
