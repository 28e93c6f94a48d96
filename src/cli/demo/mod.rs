mod notebook;
mod outputs;
