;; Runs before it is called, and never ends.
(component
  (core module (func $run (loop $again (br $again))) (start $run))
  (core instance (instantiate 0)))
