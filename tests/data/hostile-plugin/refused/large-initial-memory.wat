(component (core module (memory 60000)))
