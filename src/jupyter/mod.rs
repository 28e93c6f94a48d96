//! The Jupyter wire protocol: connection file, envelope, signing, the gate, the sockets and the iopub publisher.
