//! Locks whose rows somebody else has locked: they have a connection for themselves, so that the others of their lane need
//! not wait for them.
//!
//! On a lane an operation waits a moment for its row. If it does not get it, the operation is set aside together with
//! all that arrive for the same lock meanwhile; so what is asked of one lock stays in order.

use std::collections::VecDeque;
use std::sync::Arc;

use super::general::Patience;
use super::lane::{Job, Lane};
use super::native;
use super::session::{STEP, Session, within};
use crate::model::LockName;

impl Lane {
    /// Divides operations of a batch into those on locks whose rows somebody else has locked, which are set aside, and the
    /// others.
    pub(super) async fn set_aside_the_stuck(
        self: &Arc<Self>,
        session: &Arc<Session>,
        jobs: Vec<Job>,
    ) -> Vec<Job> {
        let names: Vec<&str> = jobs.iter().map(|job| job.bound.name.as_str()).collect();
        let stuck = match within(STEP, native::stuck(session, &names)).await {
            Ok(stuck) => stuck,
            Err(fail) => {
                self.part_from(session, &fail);
                return jobs;
            }
        };
        let (aside, others): (Vec<_>, Vec<_>) =
            jobs.into_iter().partition(|job| stuck.contains(&job.bound.name));
        for job in aside {
            self.set_aside(job);
        }
        others
    }

    /// Sets an operation aside.
    pub(super) fn set_aside(self: &Arc<Self>, job: Job) {
        let mut state = self.state();
        let name = job.bound.name.clone();
        if let Some(aside) = state.aside.get_mut(&name) {
            return aside.push_back(job);
        }
        state.aside.insert(name.clone(), VecDeque::from([job]));
        self.gate.home().spawn(self.clone().work_aside(name));
    }

    /// Those that have to be set aside because their lock is, at once; gives the others.
    pub(super) fn without_those_aside(self: &Arc<Self>, jobs: Vec<Job>) -> Vec<Job> {
        if self.state().aside.is_empty() {
            return jobs;
        }
        let (aside, others): (Vec<_>, Vec<_>) =
            jobs.into_iter().partition(|job| self.state().aside.contains_key(&job.bound.name));
        for job in aside {
            self.set_aside(job);
        }
        others
    }

    /// Does what has been set aside for one lock, until nothing is.
    async fn work_aside(self: Arc<Self>, name: LockName) {
        loop {
            let jobs: Vec<Job> = {
                let mut state = self.state();
                let jobs =
                    state.aside.get_mut(&name).map(|jobs| jobs.drain(..).collect()).unwrap_or_default();
                if Vec::is_empty(&jobs) {
                    state.aside.remove(&name);
                    return;
                }
                jobs
            };
            // Nothing of it was done: a caller that has gone away takes it with it.
            let jobs: Vec<Job> = jobs.into_iter().filter(Job::is_wanted).collect();
            let Ok(_room) = self.gate.aside.acquire().await else { return };
            let opened = match self.gate.open().await {
                Ok(session) => {
                    within(STEP, self.gate.abandoned.end_all(session.client())).await.map(|()| session)
                }
                Err(fail) => Err(fail),
            };
            match opened {
                Ok(session) => {
                    self.by_the_rules(&session, &name, jobs, Patience::Long).await;
                    if !session.is_closed() {
                        self.gate.keep(session);
                    }
                }
                Err(fail) => {
                    let error = fail.explain(&self.gate.place);
                    for job in jobs {
                        job.answer(Err(error.clone()));
                    }
                }
            }
        }
    }
}
