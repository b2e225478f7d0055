(component (core module (memory 1) (memory 1)))
