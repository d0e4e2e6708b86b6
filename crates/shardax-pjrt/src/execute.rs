//! Execution: checks and references all arguments, then calls the plugin once.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use crate::buffer::Buffer;
use crate::buffer_reference::BufferReferences;
use crate::device::Device;
use crate::element::ShapeText;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::executable::Executable;
use crate::exit;
use crate::ffi;
use crate::launch_failure::Launch;
use crate::launch_limiter::Completion;
use crate::layout::Layout;
use crate::raw::*;

/// The record of a launch that can fail while it runs.
type Origin = Option<Arc<Launch>>;

/// The buffers of one launch; inline for one device and few arrays.
type Pointers = SmallVec<[*mut RawBuffer; 16]>;

/// The completion event of each device.
type Events = SmallVec<[*mut RawEvent; 8]>;

/// A launch that the plugin accepted.
struct Started {
    outputs: Pointers,
    origin: Origin,
    /// All results are available.
    ready: bool,
}

impl Executable {
    /// Runs the program on all its devices in this process. Does not wait: results can be passed on, and reading one
    /// waits for it.
    ///
    /// `args` is flat and device-major: `args[device * parameters + parameter]`, with devices in the order of
    /// [`Executable::devices`]. Results are `[device][output]`.
    ///
    /// # Errors
    /// All checks happen before anything runs, and the client works after an error: wrong number, device, element type
    /// or shape of an argument; a deleted argument, or one donated to an earlier execution; a donated argument that is
    /// passed twice. Reading a result returns errors that occur while the program runs.
    pub fn execute(&self, args: &[&Buffer]) -> Result<Vec<Vec<Buffer>>> {
        let mut results: Vec<Vec<Buffer>> =
            self.devices.iter().map(|_| Vec::with_capacity(self.outputs.len())).collect();
        self.execute_with(args, |device, _, result| results[device].push(result))?;
        Ok(results)
    }

    /// Like [`Executable::execute`], but passes each result to `take`, with the position of its device and of the
    /// result. Results come in the order of devices, then of results.
    ///
    /// # Errors
    /// Returns the errors of [`Executable::execute`].
    #[inline]
    pub fn execute_with(&self, args: &[&Buffer], mut take: impl FnMut(usize, usize, Buffer)) -> Result<()> {
        if self.devices.is_empty() {
            return Err(Error::invalid_argument("a portable executable has no devices of its own; use execute_on"));
        }
        if self.devices.len() > 1 {
            self.client.inner.check_not_broken()?;
        }
        let Started { outputs, origin, ready } = self.launch(args, &self.devices, std::ptr::null_mut())?;
        if self.outputs.is_empty() {
            return Ok(());
        }
        let raw_of_devices = outputs.chunks(self.outputs.len());
        for (at, (raw, device)) in raw_of_devices.zip(&self.devices).enumerate() {
            self.wrap(raw, device, &origin, ready, |output, result| take(at, output, result))?;
        }
        Ok(())
    }

    /// Runs the program on one device. A portable executable can run on any device, others only on one of
    /// [`Executable::devices`]. A program with collectives cannot run on one device, because it would wait for the
    /// others.
    ///
    /// # Errors
    /// Returns the errors of [`Executable::execute`], and an error for a program with collectives, or a device that it
    /// was not compiled for.
    pub fn execute_on(&self, args: &[&Buffer], device: &Device) -> Result<Vec<Buffer>> {
        let mut results = Vec::with_capacity(self.outputs.len());
        self.execute_on_with(args, device, |_, result| results.push(result))?;
        Ok(results)
    }

    /// Like [`Executable::execute_on`], but passes each result to `take`, with its position.
    ///
    /// # Errors
    /// Returns the errors of [`Executable::execute_on`].
    #[inline]
    pub fn execute_on_with(&self, args: &[&Buffer], device: &Device, take: impl FnMut(usize, Buffer)) -> Result<()> {
        if self.devices.is_empty() {
            self.client.check_device(device)?;
        } else if !self.devices.contains(device) {
            return Err(Error::invalid_argument(format!(
                "the program was compiled for devices {:?}, but {device} is not one of them",
                self.device_ids()
            )));
        }
        if self.devices.len() > 1 && self.has_collectives != Some(false) {
            return Err(Error::invalid_argument(
                "the program has collectives, so it must run on all its devices at once; use execute",
            ));
        }
        let Started { outputs, origin, ready } = self.launch(args, std::slice::from_ref(device), device.raw())?;
        self.wrap(&outputs, device, &origin, ready, take)
    }

    #[inline]
    /// Checks and launches the program, on all of `devices` or on `on`.
    ///
    /// The order of the steps matters. Everything that can fail without the plugin comes first. Waiting for other
    /// launches comes before the arguments are referenced, because those launches may use the same arguments. After
    /// the plugin was called, each reference and each place in the limiter is released on every path.
    fn launch(&self, args: &[&Buffer], devices: &[Device], on: *mut RawDevice) -> Result<Started> {
        ffi::check_outside()?;
        self.check(args, devices)?;
        // Launches that can fail while they run are recorded, so that their results return the failure.
        let tracked = self.calls_host || args.iter().any(|arg| arg.origin.is_some());
        let launch_id = if tracked || devices.len() > 1 { self.client.inner.launch_id() } else { 0 };
        let origin =
            if tracked { Some(Launch::begin(launch_id, args, devices.len(), self.is_multi_process())?) } else { None };
        let limiter = &self.client.inner.limiter;
        // May wait, so it comes before the arguments are referenced.
        let mut multi_process = self.is_multi_process().then(|| limiter.enter_multi_process());
        if devices.len() > 1 {
            limiter.enter_multi()?
        } else {
            limiter.enter_single(devices[0].index())?
        }
        let references = match BufferReferences::take(args, &self.donated) {
            Ok(references) => references,
            Err(error) => {
                self.not_started(&origin, devices);
                return Err(error);
            }
        };

        let (outputs, events, result) = self.call_plugin(args, devices.len(), on, launch_id);
        references.finish(result.is_ok());
        match result {
            Ok(()) => {
                let (ready, completion) = self.started(&origin, devices, &events);
                if let Some(multi_process) = &mut multi_process {
                    **multi_process = completion;
                }
                Ok(Started { outputs, origin, ready })
            }
            Err(error) => {
                self.not_started(&origin, devices);
                let inner = &self.client.inner;
                if devices.len() > 1 && inner.is_cpu {
                    inner.broken.store(true, Ordering::Relaxed);
                }
                Err(error)
            }
        }
    }

    /// Calls the plugin. Returns the results and the completion event of each device, both valid only after success.
    #[inline]
    fn call_plugin(
        &self,
        args: &[&Buffer],
        num_devices: usize,
        on: *mut RawDevice,
        launch_id: i32,
    ) -> (Pointers, Events, Result<()>) {
        let (num_args, num_outputs) = (self.parameters.len(), self.outputs.len());
        let inputs: Pointers = args.iter().map(|arg| arg.raw()).collect();
        let mut outputs = Pointers::from_elem(std::ptr::null_mut(), num_outputs * num_devices);
        let mut input_lists = SmallVec::<[*const *mut RawBuffer; 8]>::new();
        let mut output_lists = SmallVec::<[*mut *mut RawBuffer; 8]>::new();
        let (first_input, first_output) = (inputs.as_ptr(), outputs.as_mut_ptr());
        for device in 0..num_devices {
            input_lists.push(first_input.wrapping_add(device * num_args));
            output_lists.push(first_output.wrapping_add(device * num_outputs));
        }
        let mut options = ExecuteOptions {
            struct_size: size_of::<ExecuteOptions>(),
            extension_start: std::ptr::null_mut(),
            send_callbacks: std::ptr::null_mut(),
            recv_callbacks: std::ptr::null_mut(),
            num_send_ops: 0,
            num_recv_ops: 0,
            launch_id,
            non_donatable_input_indices: std::ptr::null(),
            num_non_donatable_input_indices: 0,
            context: std::ptr::null_mut(),
            call_location: std::ptr::null(),
            num_tasks: 0,
            task_ids: std::ptr::null_mut(),
            incarnation_ids: std::ptr::null_mut(),
        };
        let mut events = Events::from_elem(std::ptr::null_mut(), num_devices);
        let mut call = LoadedExecute {
            executable: self.loaded.as_ptr(),
            options: &raw mut options,
            argument_lists: input_lists.as_ptr(),
            num_devices,
            num_args,
            output_lists: output_lists.as_ptr(),
            device_complete_events: events.as_mut_ptr(),
            execute_device: on,
            ..Default::default()
        };
        // SAFETY: the lists have the lengths that `call` states; every argument is live, belongs to this client, and is
        // referenced, so that no other thread deletes or donates it; `Api::call` fills in the size.
        let result = unsafe { self.api().call(&mut call) };
        (outputs, events, result)
    }

    /// Registers a launch with the limiter and with `exit`. Returns true if it has already completed successfully;
    /// otherwise the events of its devices.
    #[inline]
    fn started(&self, origin: &Origin, devices: &[Device], events: &[*mut RawEvent]) -> (bool, Completion) {
        let limiter = &self.client.inner.limiter;
        let is_first_launch = !self.launched.load(Ordering::Relaxed);
        // SAFETY: the plugin created these events for the caller to own.
        let own_event = |&event| unsafe { Event::from_raw(self.client.plugin(), event) };
        if let (None, [event], false) = (origin, events, is_first_launch) {
            // A small program has usually finished by now, on this thread.
            let (completed, in_flight) = match own_event(event) {
                Some(event) if event.is_ready() => (Some(event), None),
                event => (None, event.map(Arc::new)),
            };
            if in_flight.is_some() {
                exit::thread_launched();
            }
            limiter.single_started(devices[0].index(), in_flight);
            return (completed.is_some_and(|event| event.wait().is_ok()), Completion::new());
        }
        let completion: Completion = events.iter().filter_map(own_event).map(Arc::new).collect();
        exit::thread_launched();
        if is_first_launch {
            self.launched.store(true, Ordering::Relaxed);
            exit::after_first_launch(&completion);
        }
        if let Some(launch) = origin {
            if self.calls_host {
                self.client.inner.calls_host(&completion, launch);
            }
            for event in &completion {
                let launch = launch.clone();
                Event::call_when_ready(event.clone(), move |_| launch.device_done());
            }
            for _ in completion.len()..devices.len() {
                launch.device_done(); // the plugin returned no event for this device; none is known to do so
            }
        }
        if devices.len() > 1 {
            limiter.multi_started(completion.clone());
        } else {
            limiter.single_started(devices[0].index(), completion.first().cloned());
        }
        (false, completion)
    }

    /// Returns true if the program communicates with devices of other processes while it runs.
    #[inline]
    pub fn is_multi_process(&self) -> bool {
        self.calls_host && self.client.has_owners() && self.has_collectives == Some(true)
    }

    #[cold]
    fn not_started(&self, origin: &Origin, devices: &[Device]) {
        if let Some(launch) = origin {
            launch.abandon();
        }
        let limiter = &self.client.inner.limiter;
        if devices.len() > 1 {
            limiter.multi_started(Completion::new());
        } else {
            limiter.single_started(devices[0].index(), None);
        }
    }

    #[inline]
    fn check(&self, args: &[&Buffer], devices: &[Device]) -> Result<()> {
        let num_args = self.parameters.len();
        if args.len() != num_args * devices.len() {
            return Err(self.wrong_count(args.len(), devices.len()));
        }
        if num_args == 0 {
            return Ok(());
        }
        for (args, device) in args.chunks_exact(num_args).zip(devices) {
            for (i, (arg, spec)) in args.iter().zip(&self.parameters).enumerate() {
                if arg.device() != device
                    || arg.element_type() != spec.ty
                    || arg.dims() != spec.dims
                    || arg.order() != self.in_order(i)
                {
                    return Err(self.wrong_argument(args, device));
                }
            }
        }
        Ok(())
    }

    /// The order of a parameter's elements, if they are read in place and not row-major.
    #[inline]
    fn in_order(&self, parameter: usize) -> Option<&Arc<Layout>> {
        self.in_orders.get(parameter)?.as_ref()
    }

    #[cold]
    fn wrong_count(&self, given: usize, devices: usize) -> Error {
        let parameters = self.parameters.len();
        Error::invalid_argument(format!(
            "{given} arguments were passed, but {parameters} parameters on {devices} device(s) need {}",
            parameters * devices
        ))
    }

    /// Finds the first argument that does not match, and describes how. It is called only if the fast check failed.
    #[cold]
    fn wrong_argument(&self, args: &[&Buffer], device: &Device) -> Error {
        // The order of the elements is compared last, so that a wrong client, device or shape is reported instead.
        for (i, (arg, spec)) in args.iter().zip(&self.parameters).enumerate() {
            if !Arc::ptr_eq(arg.device().client(), device.client()) {
                return Error::invalid_argument(format!("argument {i} for {device} belongs to another client"));
            }
            if arg.device() != device {
                return Error::invalid_argument(format!("argument {i} for {device} is on {}", arg.device()));
            }
            if arg.element_type() != spec.ty || arg.dims() != spec.dims {
                return Error::invalid_argument(format!(
                    "argument {i} on {device} is {}, but the program takes {}",
                    arg.shape_text(),
                    ShapeText(spec.ty, &spec.dims)
                ));
            }
        }
        if let Some((i, arg)) = args.iter().enumerate().find(|(i, arg)| arg.order() != self.in_order(*i)) {
            return Error::invalid_argument(format!(
                "argument {i} on {device} has its {}, but the program takes {}",
                describe_order(arg.order()),
                describe_order(self.in_order(i))
            ));
        }
        Error::invalid_argument("an argument does not match the program")
    }

    /// Passes the results of one device to `take`, with their positions.
    #[inline]
    fn wrap(
        &self,
        raw: &[*mut RawBuffer],
        device: &Device,
        origin: &Origin,
        ready: bool,
        mut take: impl FnMut(usize, Buffer),
    ) -> Result<()> {
        for (i, (&raw, (ty, dims))) in raw.iter().zip(&self.outputs).enumerate() {
            // SAFETY: the plugin made these results, with the types and shapes that it reported, and this function owns
            // them.
            let mut output = unsafe { Buffer::from_raw(raw, device.clone(), *ty, dims)? };
            output.origin.clone_from(origin);
            *output.ready.get_mut() = ready;
            if let Some(order) = self.out_orders.get(i) {
                output.order.clone_from(order);
            }
            take(i, output);
        }
        Ok(())
    }
}

/// The order of an array's elements, for errors.
fn describe_order(order: Option<&Arc<Layout>>) -> String {
    match order {
        Some(layout) => format!("dimensions in the order {:?}, from minor to major", layout.minor_to_major),
        None => "elements in row-major order".to_owned(),
    }
}
