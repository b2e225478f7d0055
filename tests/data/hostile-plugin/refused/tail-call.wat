(component (core module (func $f (return_call $f))))
