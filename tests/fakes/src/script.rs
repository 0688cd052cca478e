//! One call of a fake: how it is answered, and what it was asked.

use std::collections::VecDeque;

use parking_lot::Mutex;
use zagros_protocol::{Refusal, RefusalKind};

type AnswerFn<Request, Response> = Box<dyn FnMut(Request) -> Result<Response, Refusal> + Send>;

pub struct AnswerScript<Request, Response> {
    answer: Mutex<AnswerFn<Request, Response>>,
    /// Each request, and whether it was answered with a response.
    calls: Mutex<Vec<(Request, bool)>>,
}

impl<Request: Clone, Response> AnswerScript<Request, Response> {
    pub fn new(answer: impl FnMut(Request) -> Result<Response, Refusal> + Send + 'static) -> Self {
        Self { answer: Mutex::new(Box::new(answer)), calls: Mutex::default() }
    }

    /// Refuses every call: the test expects none.
    #[must_use]
    pub fn unexpected(call: &'static str) -> Self {
        Self::new(move |_| Err(Refusal::invalid(format!("the fake has no script for {call}"))))
    }

    pub fn set(&self, answer: impl FnMut(Request) -> Result<Response, Refusal> + Send + 'static) {
        *self.answer.lock() = Box::new(answer);
    }

    pub fn respond(&self, response: Response)
    where
        Response: Clone + Send + 'static,
    {
        self.set(move |_| Ok(response.clone()));
    }

    pub fn refuse(&self, kind: RefusalKind, message: &'static str) {
        self.set(move |_| Err(Refusal::new(kind, message)));
    }

    /// From now on each call is refused as if no process listened.
    pub fn disconnect(&self) {
        self.refuse(RefusalKind::Unavailable, "connection refused");
    }

    /// From now on calls are answered in this order. The last answer stays.
    pub fn respond_in_order(&self, answers: impl IntoIterator<Item = Result<Response, Refusal>>)
    where
        Response: Clone + Send + 'static,
    {
        let mut answers: VecDeque<_> = answers.into_iter().collect();
        self.set(move |_| {
            let answer = answers.pop_front().expect("a script has an answer");
            if answers.is_empty() {
                answers.push_back(answer.clone());
            }
            answer
        });
    }

    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        self.calls.lock().iter().map(|(request, _)| request.clone()).collect()
    }

    #[must_use]
    pub fn accepted(&self) -> Vec<Request> {
        self.calls.lock().iter().filter(|(_, accepted)| *accepted).map(|(request, _)| request.clone()).collect()
    }

    pub(crate) fn call(&self, request: Request) -> Result<Response, Refusal> {
        let answer = self.answer.lock()(request.clone());
        self.calls.lock().push((request, answer.is_ok()));
        answer
    }
}
