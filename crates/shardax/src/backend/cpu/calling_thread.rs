//! Short programs on the calling thread.
//!
//! The plugin (xla-cpu-pjrt 0.0.1) runs a program on the calling thread if it counts fewer than 1,000 operations in it, and on
//! another thread otherwise, which takes 10 to 20 µs of CPU time. The C API has no option for this. The count of a loop
//! is the count of one iteration, whether or not the loop runs, and the count of a window is `(elements - 1) * results`,
//! which overflows to -2⁶² for windows of 2⁶² + 1 elements and three results. The elements have 8 bits, because a window of more
//! than 2⁶³ bytes ends the process where the compiler has no fusion emitters. Therefore a program with a loop that never
//! runs, around such a window, counts as short.

use crate::backend::quirks;
use crate::core::lower::Platform;

/// The loop. It is not removed, because its body has a side effect; `optimization_barrier` hides the false condition, and the
/// window depends on the previous iteration, so that it is not moved out of the loop. Its reducer returns the first
/// operand, therefore the loop would end soon if it ran.
const LOOP: &str = r#"    %never = "stablehlo.constant"() <{value = dense<false> : tensor<i1>}> : () -> tensor<i1>
    %never_known = "stablehlo.optimization_barrier"(%never) : (tensor<i1>) -> tensor<i1>
    %window = "stablehlo.constant"() <{value = dense<[0, 1, 2]> : tensor<3xi8>}> : () -> tensor<3xi8>
    %window_known = "stablehlo.optimization_barrier"(%window) : (tensor<3xi8>) -> tensor<3xi8>
    %loop:2 = "stablehlo.while"(%never_known, %window_known) ({
    ^bb0(%condition: tensor<i1>, %unused: tensor<3xi8>):
      "stablehlo.return"(%condition) : (tensor<i1>) -> ()
    }, {
    ^bb0(%condition: tensor<i1>, %elements: tensor<3xi8>):
      %zero = "stablehlo.constant"() <{value = dense<0> : tensor<i8>}> : () -> tensor<i8>
      %counted = "stablehlo.reduce_window"(%elements, %zero) <{padding = dense<[[4611686018427387904, 0]]> : tensor<1x2xi64>, window_dimensions = array<i64: 4611686018427387905>}> ({
      ^bb0(%left: tensor<i8>, %right: tensor<i8>):
        %sum = "stablehlo.add"(%left, %right) : (tensor<i8>, tensor<i8>) -> tensor<i8>
        %first = "stablehlo.subtract"(%sum, %right) : (tensor<i8>, tensor<i8>) -> tensor<i8>
        "stablehlo.return"(%first) : (tensor<i8>) -> ()
      }) : (tensor<3xi8>, tensor<i8>) -> tensor<3xi8>
      %token = "stablehlo.create_token"() : () -> !stablehlo.token
      %effect = "stablehlo.outfeed"(%counted, %token) <{outfeed_config = ""}> : (tensor<3xi8>, !stablehlo.token) -> !stablehlo.token
      "stablehlo.return"(%condition, %counted) : (tensor<i1>, tensor<3xi8>) -> ()
    }) : (tensor<i1>, tensor<3xi8>) -> (tensor<i1>, tensor<3xi8>)
"#;

/// The version of the plugin's C API. Another version may count otherwise, or reject the window.
const API_VERSION: (i32, i32) = (0, 81);

/// Returns the text of a program for one device in the form that runs on the calling thread. `None` if the platform's
/// plugin does not need the form, or is of another version.
pub(crate) fn on_calling_thread(platform: Platform, api_version: (i32, i32), text: &str) -> Option<String> {
    // Only the code generator of x86-64 was tried with the window.
    let is_known = cfg!(target_arch = "x86_64") && api_version == API_VERSION;
    if !is_known || !quirks::has(platform, "short-programs-change-threads") {
        return None;
    }
    // The first return is the return of `main`, the module's first function.
    let line_start = text[..text.find("\"func.return\"")?].rfind('\n')? + 1;
    Some([&text[..line_start], LOOP, &text[line_start..]].concat())
}
