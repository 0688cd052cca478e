//! Control planes of tests that change one call: the other calls go to the coordinator that they stand before.

/// Each of these calls of a [`zagros_coordinator_client::ControlPlane`] goes to `self.control`.
macro_rules! delegate_calls {
    ($($method:ident($request:ident) -> $response:ident),* $(,)?) => {$(
        fn $method(&self, request: $request) -> ControlAnswer<'_, $response> {
            self.control.$method(request)
        }
    )*};
}
