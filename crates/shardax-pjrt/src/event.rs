//! Events: completion of asynchronous work, to wait for or to be notified of.

use std::cell::Cell;
use std::ffi::c_void;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::client::ClientInner;
use crate::error::{Error, Result};
use crate::launch_failure::Launch;
use crate::panics::panic_text;
use crate::plugin::Plugin;
use crate::raw::*;

/// Completion of asynchronous work on a device.
///
/// It can be awaited. Dropping it does not cancel the work. It keeps its client alive.
pub struct Event {
    plugin: Plugin,
    raw: NonNull<RawEvent>,
    origin: Option<Arc<Launch>>,
    /// `None` in the client's own record of launches, which would otherwise keep the client alive.
    client: Option<Arc<ClientInner>>,
}

// SAFETY: PJRT events may be used and destroyed from any thread.
unsafe impl Send for Event {}
unsafe impl Sync for Event {}

thread_local! {
    // Set on the plugin's threads during a callback, because dropping a client there would wait for that thread.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Returns true if the plugin called this thread. Destroying a client there would wait for the thread itself.
pub(crate) fn in_callback() -> bool {
    IN_CALLBACK.get()
}

/// Runs code that the plugin calls. A panic must not unwind into the plugin, so its text is returned.
pub(crate) fn guard_callback<R>(f: impl FnOnce() -> R) -> std::result::Result<R, String> {
    let outer = IN_CALLBACK.replace(true);
    let result = catch_unwind(AssertUnwindSafe(f));
    IN_CALLBACK.set(outer);
    result.map_err(panic_text)
}

impl Event {
    /// Takes ownership of an event; `None` if `raw` is null. Events that leave this crate also need
    /// [`Event::with_client`].
    ///
    /// # Safety
    /// `raw` is null or a live event of this plugin that nobody else destroys.
    pub(crate) unsafe fn from_raw(plugin: &Plugin, raw: *mut RawEvent) -> Option<Event> {
        NonNull::new(raw).map(|raw| Event { plugin: plugin.clone(), raw, origin: None, client: None })
    }

    /// Keeps the client alive as long as the event.
    pub(crate) fn with_client(mut self, client: &Arc<ClientInner>) -> Event {
        self.client = Some(client.clone());
        self
    }

    /// Reports failures of this launch as well.
    pub(crate) fn with_launch(mut self, origin: Option<Arc<Launch>>) -> Event {
        self.origin = origin;
        self
    }

    fn check_origin(&self) -> Result<()> {
        self.origin.as_ref().map_or(Ok(()), |launch| launch.check())
    }

    /// Blocks until the work is done.
    ///
    /// # Errors
    /// Returns the error of the work.
    pub fn wait(self) -> Result<()> {
        self.wait_ref()
    }

    pub(crate) fn wait_ref(&self) -> Result<()> {
        let mut args = EventAwait { event: self.raw.as_ptr(), ..Default::default() };
        // SAFETY: the event is live.
        unsafe { self.plugin.api().call(&mut args) }.and_then(|()| self.check_origin())
    }

    /// Returns true if the work is done, successfully or not.
    pub fn is_ready(&self) -> bool {
        let mut args = EventIsReady { event: self.raw.as_ptr(), ..Default::default() };
        // SAFETY: the event is live.
        unsafe { self.plugin.api().call(&mut args) }.is_ok() && args.is_ready
    }

    /// Calls `f` when the work is done, on a thread of the plugin, or on this thread if the work is already done.
    ///
    /// A panic in `f` is caught and ignored. `f` should be short: it may delay other work of the plugin.
    pub fn on_ready(self, f: impl FnOnce(Result<()>) + Send + 'static) {
        Event::call_when_ready(Arc::new(self), f);
    }

    pub(crate) fn call_when_ready(event: Arc<Event>, f: impl FnOnce(Result<()>) + Send + 'static) {
        type Callback = Box<dyn FnOnce(Result<()>) + Send>;
        struct State {
            // Destroyed by the last user: the callback or the registering call.
            event: Arc<Event>,
            f: Callback,
        }

        unsafe extern "C" fn call(error: *mut RawError, state: *mut c_void) {
            // SAFETY: `state` is the box leaked below, and the callback runs once.
            let state = unsafe { Box::from_raw(state.cast::<State>()) };
            let result = if error.is_null() {
                state.event.check_origin()
            } else {
                Err(state.event.plugin.api().take_error(error, "PJRT_Event_OnReady"))
            };
            let _ = guard_callback(move || {
                let State { event, f } = *state;
                f(result);
                drop(event);
            });
        }

        let state = Box::into_raw(Box::new(State { event: event.clone(), f: Box::new(f) }));
        let mut args = EventOnReady {
            event: event.raw.as_ptr(),
            callback: Some(call),
            user_arg: state.cast(),
            ..Default::default()
        };
        // SAFETY: the event is live, and `state` lives until the callback takes it.
        if let Err(error) = unsafe { event.plugin.api().call(&mut args) } {
            // SAFETY: a failed registration never calls back, so this function still owns the box.
            let state = unsafe { Box::from_raw(state) };
            (state.f)(Err(error));
        }
    }
}

/// The future of an [`Event`]. It occupies no thread while it waits.
#[must_use = "a future does nothing until it is awaited"]
#[derive(Debug)]
pub struct EventFuture(Arc<Mutex<Awaited>>);

#[derive(Debug)]
enum Awaited {
    Waiting(Option<Waker>),
    Done(Result<()>),
}

impl EventFuture {
    fn state(state: &Mutex<Awaited>) -> MutexGuard<'_, Awaited> {
        state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl IntoFuture for Event {
    type Output = Result<()>;
    type IntoFuture = EventFuture;

    fn into_future(self) -> EventFuture {
        let state = Arc::new(Mutex::new(Awaited::Waiting(None)));
        let done = state.clone();
        self.on_ready(move |result| {
            let before = std::mem::replace(&mut *EventFuture::state(&done), Awaited::Done(result));
            if let Awaited::Waiting(Some(waker)) = before {
                waker.wake();
            }
        });
        EventFuture(state)
    }
}

impl Future for EventFuture {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        match &mut *EventFuture::state(&self.0) {
            Awaited::Done(result) => Poll::Ready(result.clone()),
            Awaited::Waiting(waker) => {
                match waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    None => *waker = Some(context.waker().clone()),
                }
                Poll::Pending
            }
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let mut args = EventDestroy { event: self.raw.as_ptr(), ..Default::default() };
        // SAFETY: the event is live, and this crate owns it.
        let _ = unsafe { self.plugin.api().call(&mut args) };
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").field("is_ready", &self.is_ready()).finish()
    }
}

/// The error for an event that the plugin should have returned.
pub(crate) fn no_event(context: &str) -> Error {
    Error::new(crate::Code::Internal, format!("the plugin returned no event (in {context})"))
}
